//! Random numbers whose seed is the kernel's. `fastrand`'s own seed is a hash of the clock and the thread: launchers that
//! start in the same nanosecond, as two on one machine do now and then, would draw the same names.

/// A generator with a seed of the kernel.
pub fn rng() -> fastrand::Rng {
    // Where a filter forbids the call, the clock has to do.
    kernel_seed().map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed)
}

fn kernel_seed() -> Option<u64> {
    let mut seed = [0; size_of::<u64>()];
    // SAFETY: `seed` is a local array that outlives the call, and its length is given.
    let read = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    // Up to 256 bytes are whole (getrandom(2)).
    (read == seed.len() as isize).then(|| u64::from_ne_bytes(seed))
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
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_kernel_gives_a_new_seed_each_time() {
        let seeds: BTreeSet<u64> = (0..1000).filter_map(|_| kernel_seed()).collect();
        assert_eq!(seeds.len(), 1000);
    }

    #[test]
    fn words_differ_and_have_their_letters() {
        let words: BTreeSet<String> = (0..1000).map(|_| alphanumeric(16)).collect();
        assert_eq!(words.len(), 1000);
        assert!(words.iter().all(|word| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_alphanumeric())));
        assert!(lowercase(100).bytes().all(|byte| byte.is_ascii_lowercase()));
    }
}
