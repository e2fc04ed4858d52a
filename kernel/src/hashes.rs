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
    data.iter().fold(prefix, |hash, &byte| {
        hash.wrapping_mul(31).wrapping_add(i32::from(byte))
    })
}

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
    fn hash_counts_utf16_units() {
        // U+1F600 is the pair D83D DE00.
        assert_eq!(java_hash("\u{1F600}".as_bytes()), 0xD83D * 31 + 0xDE00);
    }
}
