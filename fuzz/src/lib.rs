//! What the fuzz targets share.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The first byte as the size of the pieces in which the other bytes arrive, and these bytes.
pub fn cut(data: &[u8]) -> (usize, &[u8]) {
    match data {
        [step, rest @ ..] => (usize::from(*step) + 1, rest),
        [] => (1, data),
    }
}

/// What a parser returns for bytes that arrive in pieces: its messages, and the error that ended them.
pub fn messages<M, E>(
    bytes: &[u8],
    step: usize,
    mut feed: impl FnMut(&[u8], &mut dyn FnMut(Result<M, E>) -> bool),
) -> (Vec<M>, Option<E>) {
    let (mut found, mut failed) = (Vec::new(), None);
    for piece in bytes.chunks(step) {
        feed(piece, &mut |result| match result {
            Ok(message) => {
                found.push(message);
                true
            }
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        if failed.is_some() {
            break;
        }
    }
    (found, failed)
}

/// The size of the pieces in which servers read.
pub const PIECE: usize = 64 * 1024;

/// For a few inputs: the input again and again, 1 MiB in all. A parser that takes quadratic time exceeds the time limit with it.
pub fn repeated(data: &[u8]) -> Option<Vec<u8>> {
    let sum: u32 = data.iter().fold(1, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let is_chosen = !data.is_empty() && sum % 512 == 0;
    is_chosen.then(|| data.iter().copied().cycle().take(1 << 20).collect())
}

/// The lines of a text as the words of a command line.
pub fn words(data: &[u8]) -> Vec<OsString> {
    data.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec())).collect()
}
