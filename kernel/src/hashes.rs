//! Java's string hash and Apache's checksum (`plain/hashes.py`).

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::layout::CRC_MASK;

/// `String.hashCode` of the text these UTF-8 bytes stand for; what is not UTF-8 counts as U+FFFD, as in Java.
pub fn java_hash(data: &[u8]) -> i32 {
    if data.is_ascii() {
        return extend(0, data);
    }
    String::from_utf8_lossy(data)
        .encode_utf16()
        .fold(0i32, |hash, unit| {
            hash.wrapping_mul(31).wrapping_add(i32::from(unit))
        })
}

/// The hash of a text from the hash of what stands before `data`, which must be ASCII.
pub fn extend(prefix: i32, data: &[u8]) -> i32 {
    // Eight at a time: what is multiplied one after the other is then only every eighth.
    let mut chunks = data.chunks_exact(8);
    let hash = chunks.by_ref().fold(prefix, |hash, chunk| {
        let weighted = chunk
            .iter()
            .zip(POWERS)
            .fold(0i32, |sum, (&byte, power)| {
                sum.wrapping_add(i32::from(byte).wrapping_mul(power))
            });
        hash.wrapping_mul(POWERS[0].wrapping_mul(31))
            .wrapping_add(weighted)
    });
    chunks.remainder().iter().fold(hash, |hash, &byte| {
        hash.wrapping_mul(31).wrapping_add(i32::from(byte))
    })
}

/// 31 to the power of 7, 6, ... 0.
const POWERS: [i32; 8] = {
    let mut powers = [1i32; 8];
    let mut at = 7;
    while at > 0 {
        powers[at - 1] = powers[at].wrapping_mul(31);
        at -= 1;
    }
    powers
};

/// The checksum of a stored body: CRC-32 with the top bit cleared.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_MASK
}

#[pyfunction]
fn java_hash_bytes(data: PyBackedBytes) -> i32 {
    java_hash(&data)
}

#[pyfunction(name = "body_crc")]
fn py_body_crc(data: PyBackedBytes) -> u32 {
    body_crc(&data)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(py_body_crc, module)?)?;
    module.add_function(wrap_pyfunction!(java_hash_bytes, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_ascii_is_javas() {
        assert_eq!(java_hash(b"TagA"), 2598919);
        assert_eq!(java_hash(b""), 0);
    }

    #[test]
    fn hash_of_any_length_is_that_of_one_byte_after_the_other() {
        let text = b"the quick brown fox jumps over the lazy dog";
        for end in 0..text.len() {
            let slowly = text[..end].iter().fold(7i32, |hash, &byte| {
                hash.wrapping_mul(31).wrapping_add(i32::from(byte))
            });
            assert_eq!(extend(7, &text[..end]), slowly);
        }
    }

    #[test]
    fn hash_counts_utf16_units() {
        // U+1F600 is the pair D83D DE00.
        assert_eq!(java_hash("\u{1F600}".as_bytes()), 0xD83D * 31 + 0xDE00);
    }
}
