//! Positions and magic numbers of a record, a queue unit, a batch entry and a frame; the same numbers as
//! `orbitmq/kernel/layout.py`, and in no other file. Persisted: never renumber.

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
pub const CRC_MASK: u32 = 0x7FFF_FFFF;

/// Bits of the system flag: the host takes 20 bytes.
pub const BORN_V6: i32 = 0x10;
pub const STORE_V6: i32 = 0x20;
pub const HOST_V4_BYTES: usize = 8;
pub const HOST_V6_BYTES: usize = 20;
pub const HOST_V6_MORE_BYTES: usize = HOST_V6_BYTES - HOST_V4_BYTES;

/// Where the fields of a record stand; what comes after the born host moves with its length.
pub const MAGIC_AT: usize = 4;
pub const CRC_AT: usize = 8;
pub const QUEUE_ID_AT: usize = 12;
pub const FLAG_AT: usize = 16;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const LOG_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_TIME_AT: usize = 40;
pub const BORN_HOST_AT: usize = 48;
/// With an IPv4 born host.
pub const STORE_TIME_AT: usize = 56;

/// Fixed part of a record with two IPv4 hosts, up to and including the body size.
pub const FIXED_BYTES: usize = 88;
pub const RECORD_BYTES_MIN: usize = FIXED_BYTES + 3;
pub const BLANK_BYTES: usize = 8;
pub const BATCH_ENTRY_BYTES: usize = 20;
pub const UNIT_BYTES: usize = 20;
/// Begin and end of a slice of a piece of the log.
pub const SLICE_BYTES: usize = 16;
/// An index key on its way into the index: hash, log offset, store time; and an entry of an index file.
pub const KEY_BYTES: usize = 20;
pub const INDEX_ENTRY_BYTES: usize = 20;

/// The shortest binary header of a frame, and the longest header of either form.
pub const BINARY_MIN: usize = 21;
pub const HEADER_BYTES_MAX: usize = 0x00ff_ffff;

pub const TOPIC_BYTES_MAX_V1: usize = 127;
pub const TOPIC_BYTES_MAX: usize = 255;
pub const PROPERTIES_BYTES_MAX: usize = 32767;

/// A disk sector. That many zeroes in a row inside the properties are a lost write.
pub const HOLE_BYTES: usize = 512;

/// Set in prepared and rolled back messages of transactions: they are in no queue.
pub const PREPARED: i32 = 0x4;
/// Both transaction bits; such a message has no index entry either.
pub const ROLLED_BACK: i32 = 0xC;

pub fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(2)?)?;
    Some(usize::from(u16::from_be_bytes(bytes.try_into().ok()?)))
}

pub fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    i32_at(data, at).map(|value| value as u32)
}

pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    let bytes = data.get(at..at.checked_add(8)?)?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}
