//! Random numbers whose seed is the kernel's. `fastrand`'s own seed is a hash of the clock and the thread: launchers that
//! start in the same nanosecond, as two on one machine do now and then, would draw the same names.

use std::io;

/// A generator with a seed of the kernel.
pub fn rng() -> fastrand::Rng {
    // Where a filter forbids the call, the clock has to do.
    kernel_seed().map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed)
}

fn kernel_seed() -> Option<u64> {
    let mut seed = [0; size_of::<u64>()];
    fill(&mut seed).ok().map(|()| u64::from_ne_bytes(seed))
}

/// Fills at most 256 bytes, which the kernel gives as a whole (getrandom(2)).
fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: `bytes` outlives the call, and its length is given.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match read {
        -1 => Err(io::Error::last_os_error()),
        read if read == bytes.len() as isize => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A word of letters and digits that cannot be guessed: all of its bits are the kernel's. Fails where a filter forbids the call.
pub fn secret(length: usize) -> io::Result<String> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    // The bytes above are left out, so that each letter is as likely as the others.
    const EVEN: u8 = (256 / LETTERS.len() * LETTERS.len()) as u8;
    let mut word = String::new();
    while word.len() < length {
        let mut bytes = [0; 64];
        fill(&mut bytes)?;
        let even = bytes.iter().filter(|byte| **byte < EVEN);
        let letters = even.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
        word.extend(letters.take(length - word.len()));
    }
    Ok(word)
}

/// A word of letters and digits.
pub fn alphanumeric(length: usize) -> String {
    let mut rng = rng();
    (0..length).map(|_| rng.alphanumeric()).collect()
}

/// A word of lowercase letters.
pub fn lowercase(length: usize) -> String {
    let mut rng = rng();
    (0..length).map(|_| rng.lowercase()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn the_kernel_gives_a_new_seed_each_time() {
        let seeds: BTreeSet<u64> = (0..1000).filter_map(|_| kernel_seed()).collect();
        assert_eq!(seeds.len(), 1000);
    }

    #[test]
    fn secrets_have_all_letters_and_none_twice_as_often() {
        let secret = secret(62_000).unwrap();
        assert_eq!(secret.len(), 62_000);
        let mut counts = BTreeMap::new();
        secret.bytes().for_each(|byte| *counts.entry(byte).or_insert(0) += 1);
        assert_eq!(counts.len(), 62);
        assert!(counts.values().all(|count| (700..1300).contains(count)), "{counts:?}");
    }

    #[test]
    fn words_differ_and_have_their_letters() {
        let words: BTreeSet<String> = (0..1000).map(|_| alphanumeric(16)).collect();
        assert_eq!(words.len(), 1000);
        assert!(words.iter().all(|word| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_alphanumeric())));
        assert!(lowercase(100).bytes().all(|byte| byte.is_ascii_lowercase()));
    }
}
