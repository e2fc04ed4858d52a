//! Positions and magic numbers of a record, a queue unit and a batch entry; the same numbers as
//! `orbitmq/kernel/plain/layout.py`. Persisted: never renumber.

pub const CRC_MASK: u32 = 0x7FFF_FFFF;
