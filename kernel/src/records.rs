//! The twin of `plain/records.py`.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::PyValueError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple};

use crate::hashes::{body_crc, extend, java_hash};
use crate::layout::*;
use crate::properties::{find, find_names, tag_code, Names};

import_exception!(orbitmq.errors, RecordError);

/// Above this many bytes a call lets other Python threads run.
const LONG_BYTES: usize = 256 << 10;

pub fn refused(text: impl std::fmt::Display) -> PyErr {
    RecordError::new_err(format!("the message cannot be stored: {text}"))
}

/// What one record is made of; the rest is shared by a call.
pub struct Message<'a> {
    pub queue_id: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub born_ms: i64,
    pub born_host: &'a [u8],
    pub flag: i32,
    pub sys_flag: i32,
    pub times: i32,
    pub prepared: i64,
}

/// Takes the bytes of records.
pub trait Records {
    fn put(&mut self, bytes: &[u8]) -> PyResult<()>;
}

impl Records for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) -> PyResult<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Room of a size that was computed before.
pub struct Room<'a> {
    pub bytes: &'a mut [u8],
    pub used: usize,
}

impl Records for Room<'_> {
    fn put(&mut self, bytes: &[u8]) -> PyResult<()> {
        let end = self.used + bytes.len();
        match self.bytes.get_mut(self.used..end) {
            Some(room) => room.copy_from_slice(bytes),
            None => return Err(refused("it is larger than computed")),
        }
        self.used = end;
        Ok(())
    }
}

/// Where records go, and what is common to all of a call.
pub struct Writer<'a, R> {
    records: R,
    /// Of the next record; None once it does not fit its field.
    log_offset: Option<i64>,
    store_ms: i64,
    store_host: &'a [u8],
    with_keys: u8,
    keys: Vec<u8>,
}

fn host_bit(host: &[u8], bit: i32) -> PyResult<i32> {
    match host.len() {
        HOST_V4_BYTES => Ok(0),
        HOST_V6_BYTES => Ok(bit),
        other => Err(RecordError::new_err(format!(
            "a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {other}"
        ))),
    }
}

fn check_topic(topic: &[u8]) -> PyResult<()> {
    if topic.is_empty() {
        return Err(RecordError::new_err("the topic is empty"));
    }
    if topic.contains(&0) {
        return Err(RecordError::new_err("the topic contains a zero byte"));
    }
    if topic.len() > TOPIC_BYTES_MAX {
        return Err(RecordError::new_err(format!(
            "the topic has {} bytes, at most {TOPIC_BYTES_MAX} are allowed",
            topic.len()
        )));
    }
    Ok(())
}

fn has_hole(properties: &[u8]) -> bool {
    if properties.len() < HOLE_BYTES {
        return false;
    }
    let mut run = 0;
    for &byte in properties {
        run = if byte == 0 { run + 1 } else { 0 };
        if run == HOLE_BYTES {
            return true;
        }
    }
    false
}

/// The size of a record whose hosts, topic, body and properties have these sizes.
pub fn record_bytes(hosts: usize, topic: usize, body: usize, properties: usize) -> usize {
    let topic = topic + 1 + usize::from(topic > TOPIC_BYTES_MAX_V1);
    FIXED_BYTES - 2 * HOST_V4_BYTES + hosts + body + topic + 2 + properties
}

/// A queue offset that was counted up.
fn in_range(queue_offset: Option<i64>) -> PyResult<i64> {
    queue_offset.ok_or_else(|| refused("queue offset out of range"))
}

/// A number of a call, of 64 bits.
fn long(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract().map_err(refused)
}

/// Address and port of the store, of a length that a record can hold.
fn store_host_of<'a, 'py>(host: &'a Bound<'py, PyAny>) -> PyResult<&'a [u8]> {
    let host = host.downcast::<PyBytes>().map_err(refused)?.as_bytes();
    host_bit(host, STORE_V6)?;
    Ok(host)
}

impl<R: Records> Writer<'_, R> {
    /// Appends one record; returns its log offset, size and tag code.
    fn write(
        &mut self,
        topic: &[u8],
        message: &Message<'_>,
        queue_offset: i64,
    ) -> PyResult<(i64, i32, i64)> {
        let host_bits =
            host_bit(message.born_host, BORN_V6)? | host_bit(self.store_host, STORE_V6)?;
        // Text that ends with a zero would look like a torn write: it gets the terminator it may have.
        let ended = message.properties.last() == Some(&0);
        let properties_size = message.properties.len() + usize::from(ended);
        if properties_size > PROPERTIES_BYTES_MAX {
            return Err(RecordError::new_err(format!(
                "properties have {properties_size} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
            )));
        }
        if has_hole(message.properties) {
            return Err(RecordError::new_err(format!(
                "properties contain {HOLE_BYTES} zero bytes in a row"
            )));
        }
        let is_long = topic.len() > TOPIC_BYTES_MAX_V1;
        let hosts = message.born_host.len() + self.store_host.len();
        let size = record_bytes(hosts, topic.len(), message.body.len(), properties_size);
        let size = i32::try_from(size).map_err(|_| refused("it is too large"))?;
        let log_offset = self
            .log_offset
            .ok_or_else(|| refused("log offset out of range"))?;
        let out = &mut self.records;
        out.put(&size.to_be_bytes())?;
        out.put(&(if is_long { MAGIC_V2 } else { MAGIC_V1 }).to_be_bytes())?;
        out.put(&body_crc(message.body).to_be_bytes())?;
        out.put(&message.queue_id.to_be_bytes())?;
        out.put(&message.flag.to_be_bytes())?;
        out.put(&queue_offset.to_be_bytes())?;
        out.put(&log_offset.to_be_bytes())?;
        out.put(&(message.sys_flag & !(BORN_V6 | STORE_V6) | host_bits).to_be_bytes())?;
        out.put(&message.born_ms.to_be_bytes())?;
        out.put(message.born_host)?;
        out.put(&self.store_ms.to_be_bytes())?;
        out.put(self.store_host)?;
        out.put(&message.times.to_be_bytes())?;
        out.put(&message.prepared.to_be_bytes())?;
        out.put(&(message.body.len() as i32).to_be_bytes())?;
        out.put(message.body)?;
        if is_long {
            out.put(&(topic.len() as u16).to_be_bytes())?;
        } else {
            out.put(&[topic.len() as u8])?;
        }
        out.put(topic)?;
        out.put(&(properties_size as u16).to_be_bytes())?;
        out.put(message.properties)?;
        if ended {
            out.put(&[2])?;
        }
        self.log_offset = log_offset.checked_add(i64::from(size));
        let names = find_names(message.properties);
        let (keys, store_ms) = (&mut self.keys, self.store_ms);
        key_hashes(
            topic,
            message.properties,
            &names,
            message.sys_flag,
            self.with_keys,
            |hash| push_key(keys, hash, log_offset, store_ms),
        );
        Ok((log_offset, size, tag_code(message.properties, &names)))
    }
}

/// Hashes of `topic#UNIQ_KEY`, `topic#key` for every word of KEYS, and `topic#T#tag`, in this order.
fn key_hashes(
    topic: &[u8],
    properties: &[u8],
    names: &Names,
    sys_flag: i32,
    with_keys: u8,
    mut add: impl FnMut(i32),
) {
    if with_keys == 0 || sys_flag & ROLLED_BACK == ROLLED_BACK {
        return;
    }
    let unique = names.unique_key.map(|(start, end)| &properties[start..end]);
    let words = names.keys.map(|(start, end)| &properties[start..end]);
    let tag = names
        .tags
        .filter(|_| with_keys == 2)
        .map(|(start, end)| &properties[start..end]);
    if unique.is_none() && words.is_none() && tag.is_none() {
        return;
    }
    let prefix = extend(java_hash(topic), b"#");
    // The absolute value, and 0 where that overflows in Java.
    let stored = |hash: i32| hash.checked_abs().unwrap_or(0);
    if let Some(key) = unique {
        add(stored(continued(prefix, key)));
    }
    if let Some(words) = words {
        for word in words
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty())
        {
            add(stored(continued(prefix, word)));
        }
    }
    if let Some(tag) = tag {
        add(stored(continued(extend(prefix, b"T#"), tag)));
    }
}

/// The hash of a text extended by these UTF-8 bytes.
fn continued(prefix: i32, data: &[u8]) -> i32 {
    if data.is_ascii() {
        return extend(prefix, data);
    }
    String::from_utf8_lossy(data)
        .encode_utf16()
        .fold(prefix, |hash, unit| {
            hash.wrapping_mul(31).wrapping_add(i32::from(unit))
        })
}

fn push_unit(units: &mut Vec<u8>, log_offset: i64, size: i32, code: i64) {
    units.extend_from_slice(&log_offset.to_be_bytes());
    units.extend_from_slice(&size.to_be_bytes());
    units.extend_from_slice(&code.to_be_bytes());
}

fn push_key(keys: &mut Vec<u8>, hash: i32, log_offset: i64, store_ms: i64) {
    keys.extend_from_slice(&hash.to_be_bytes());
    keys.extend_from_slice(&log_offset.to_be_bytes());
    keys.extend_from_slice(&store_ms.to_be_bytes());
}

/// The fields of a message tuple; the borrowed parts live as long as the tuple.
pub struct Fields<'py> {
    topic: Bound<'py, PyString>,
    pub body: Bound<'py, PyBytes>,
    properties: Bound<'py, PyBytes>,
    born_host: Bound<'py, PyBytes>,
    numbers: (i32, i64, i32, i32, i32, i64),
}

fn bytes_item<'py>(
    tuple: &Bound<'py, PyTuple>,
    at: usize,
    what: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let item = tuple.get_item(at)?;
    match item.downcast_into::<PyBytes>() {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            let item = error.into_inner();
            if item.is_none() {
                return Err(RecordError::new_err(format!("the message has no {what}")));
            }
            // bytearray and memoryview are copied; anything else has no bytes.
            let buffer = pyo3::buffer::PyBuffer::<u8>::get(&item).map_err(refused)?;
            Ok(PyBytes::new(
                tuple.py(),
                &buffer.to_vec(tuple.py()).map_err(refused)?,
            ))
        }
    }
}

impl<'py> Fields<'py> {
    pub fn of(item: &Bound<'py, PyAny>) -> PyResult<Fields<'py>> {
        let tuple = Self::tuple(item)?;
        let flag = tuple.get_item(6)?.extract().map_err(refused)?;
        Self::with(tuple, bytes_item(tuple, 3, "properties")?, flag)
    }

    /// The values that the messages of a batch share. Each has properties and a flag of its own.
    pub fn of_template(item: &Bound<'py, PyAny>) -> PyResult<Fields<'py>> {
        Self::with(Self::tuple(item)?, PyBytes::new(item.py(), b""), 0)
    }

    fn tuple<'a>(item: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyTuple>> {
        let tuple = item.downcast::<PyTuple>().map_err(refused)?;
        if tuple.len() != 10 {
            return Err(refused(format!("{} fields, not 10", tuple.len())));
        }
        Ok(tuple)
    }

    fn with(
        tuple: &Bound<'py, PyTuple>,
        properties: Bound<'py, PyBytes>,
        flag: i32,
    ) -> PyResult<Fields<'py>> {
        let int32 =
            |at: usize| -> PyResult<i32> { tuple.get_item(at)?.extract::<i32>().map_err(refused) };
        let int64 =
            |at: usize| -> PyResult<i64> { tuple.get_item(at)?.extract::<i64>().map_err(refused) };
        Ok(Fields {
            topic: tuple
                .get_item(0)?
                .downcast_into::<PyString>()
                .map_err(refused)?,
            body: bytes_item(tuple, 2, "body")?,
            properties,
            born_host: bytes_item(tuple, 5, "born host")?,
            numbers: (int32(1)?, int64(4)?, flag, int32(7)?, int32(8)?, int64(9)?),
        })
    }

    pub fn topic(&self) -> PyResult<&str> {
        let topic = self.topic.to_str().map_err(refused)?;
        check_topic(topic.as_bytes())?;
        Ok(topic)
    }

    pub fn message(&self) -> Message<'_> {
        let (queue_id, born_ms, flag, sys_flag, times, prepared) = self.numbers;
        Message {
            queue_id,
            body: self.body.as_bytes(),
            properties: self.properties.as_bytes(),
            born_ms,
            born_host: self.born_host.as_bytes(),
            flag,
            sys_flag,
            times,
            prepared,
        }
    }
}

type Encoded<'py> = (
    Bound<'py, PyBytes>,
    Vec<i64>,
    Vec<i64>,
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
);

/// The records of one call, and the units of the queues they go to.
pub struct Append<'a, R> {
    writer: Writer<'a, R>,
    next_offsets: Vec<Option<i64>>,
    pub units: Vec<Vec<u8>>,
}

/// The values all records of a call share.
pub struct Place<'a> {
    next_offsets: Vec<i64>,
    log_offset: i64,
    store_ms: i64,
    pub store_host: &'a [u8],
    with_keys: u8,
}

impl<'a> Place<'a> {
    pub fn of(
        next_offsets: &Bound<'_, PyAny>,
        log_offset: &Bound<'_, PyAny>,
        store_ms: &Bound<'_, PyAny>,
        store_host: &'a Bound<'_, PyAny>,
        with_keys: u8,
    ) -> PyResult<Place<'a>> {
        Ok(Place {
            next_offsets: next_offsets.extract().map_err(refused)?,
            log_offset: long(log_offset)?,
            store_ms: long(store_ms)?,
            store_host: store_host_of(store_host)?,
            with_keys,
        })
    }

    pub fn queue_count(&self) -> usize {
        self.next_offsets.len()
    }
}

impl<'a, R: Records> Append<'a, R> {
    /// With room for the keys of so many records.
    pub fn new(place: Place<'a>, records: R, count: usize) -> Append<'a, R> {
        let keys = if place.with_keys > 0 {
            2 * count * KEY_BYTES
        } else {
            0
        };
        Append {
            units: vec![Vec::new(); place.next_offsets.len()],
            next_offsets: place.next_offsets.into_iter().map(Some).collect(),
            writer: Writer {
                records,
                log_offset: Some(place.log_offset),
                store_ms: place.store_ms,
                store_host: place.store_host,
                with_keys: place.with_keys,
                keys: Vec::with_capacity(keys),
            },
        }
    }

    pub fn into_parts(self) -> (R, Vec<Vec<u8>>, Vec<u8>) {
        (self.writer.records, self.units, self.writer.keys)
    }

    /// Appends one message; returns its log offset, its size and its queue offset.
    pub fn add(
        &mut self,
        topic: &str,
        message: &Message<'_>,
        slot: usize,
    ) -> PyResult<(i64, i32, i64)> {
        let next = self
            .next_offsets
            .get_mut(slot)
            .ok_or_else(|| refused("no such slot"))?;
        let in_queue = message.sys_flag & PREPARED == 0;
        let queue_offset = if in_queue { in_range(*next)? } else { 0 };
        let (offset, size, code) = self.writer.write(topic.as_bytes(), message, queue_offset)?;
        if in_queue {
            push_unit(&mut self.units[slot], offset, size, code);
            *next = queue_offset.checked_add(1);
        }
        Ok((offset, size, queue_offset))
    }
}

/// The slot of each message.
fn slots_of(slots: &Bound<'_, PySequence>, count: usize) -> PyResult<Vec<i64>> {
    if slots.len()? != count {
        return Err(refused("as many slots as messages are needed"));
    }
    (0..count)
        .map(|at| slots.get_item(at)?.extract().map_err(refused))
        .collect()
}

fn slot_of(slot: i64) -> PyResult<usize> {
    usize::try_from(slot).map_err(|_| refused("no such slot"))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // the signature of the plain twin
fn encode_records<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PySequence>,
    slots: &Bound<'py, PySequence>,
    next_offsets: &Bound<'py, PyAny>,
    log_offset: &Bound<'py, PyAny>,
    store_ms: &Bound<'py, PyAny>,
    store_host: &Bound<'py, PyAny>,
    with_keys: u8,
) -> PyResult<Encoded<'py>> {
    let count = messages.len()?;
    let slots = slots_of(slots, count)?;
    let place = Place::of(next_offsets, log_offset, store_ms, store_host, with_keys)?;
    let mut append = Append::new(place, Vec::with_capacity(count * 256), count);
    let (mut log_offsets, mut queue_offsets) =
        (Vec::with_capacity(count), Vec::with_capacity(count));
    for (at, slot) in slots.into_iter().enumerate() {
        let fields = Fields::of(&messages.get_item(at)?)?;
        let (offset, _, queue_offset) =
            append.add(fields.topic()?, &fields.message(), slot_of(slot)?)?;
        log_offsets.push(offset);
        queue_offsets.push(queue_offset);
    }
    let (records, units, keys) = append.into_parts();
    Ok((
        PyBytes::new(py, &records),
        log_offsets,
        queue_offsets,
        PyList::new(py, units.iter().map(|each| PyBytes::new(py, each)))?,
        PyBytes::new(py, &keys),
    ))
}

#[pyfunction]
fn encode_record<'py>(
    py: Python<'py>,
    message: &Bound<'py, PyAny>,
    queue_offset: &Bound<'py, PyAny>,
    log_offset: &Bound<'py, PyAny>,
    store_ms: &Bound<'py, PyAny>,
    store_host: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let fields = Fields::of(message)?;
    let mut writer = Writer {
        records: Vec::new(),
        log_offset: Some(long(log_offset)?),
        store_ms: long(store_ms)?,
        store_host: store_host_of(store_host)?,
        with_keys: 0,
        keys: Vec::new(),
    };
    writer.write(
        fields.topic()?.as_bytes(),
        &fields.message(),
        long(queue_offset)?,
    )?;
    Ok(PyBytes::new(py, &writer.records))
}

pub struct Entry<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub end: usize,
}

pub fn split_entry(data: &[u8], position: usize) -> Result<Entry<'_>, String> {
    let start = position + BATCH_ENTRY_BYTES;
    let (size, flag, body_size) = match (
        i32_at(data, position),
        i32_at(data, position + 12),
        i32_at(data, position + 16),
    ) {
        (Some(size), Some(flag), Some(body_size)) => (size, flag, body_size),
        _ => return Err(format!("{} bytes are too few", data.len() - position)),
    };
    let wrong = || format!("a size of {size} with a body of {body_size} is wrong");
    let end = position + usize::try_from(size).map_err(|_| wrong())?;
    let body_end = start + usize::try_from(body_size).map_err(|_| wrong())?;
    if body_end + 2 > end || end > data.len() {
        return Err(wrong());
    }
    if u16_at(data, body_end) != Some(end - body_end - 2) {
        return Err("its properties do not end with it".into());
    }
    Ok(Entry {
        flag,
        body: &data[start..body_end],
        properties: &data[body_end + 2..end],
        end,
    })
}

/// One whole record in a buffer.
pub struct Found {
    position: usize,
    size: usize,
    magic: u32,
    crc: u32,
    queue_id: i32,
    queue_offset: i64,
    log_offset: i64,
    sys_flag: i32,
    store_ms: i64,
    body: (usize, usize),
    pub topic: (usize, usize),
    properties: (usize, usize),
}

pub fn record_at(
    data: &[u8],
    position: usize,
    end: usize,
    check_crc: bool,
    log_base: Option<i64>,
) -> Option<Found> {
    if position + RECORD_BYTES_MIN > end {
        return None;
    }
    let sys_flag = i32_at(data, position + SYS_FLAG_AT)?;
    let born_v6 = if sys_flag & BORN_V6 != 0 {
        HOST_V6_MORE_BYTES
    } else {
        0
    };
    let store_v6 = if sys_flag & STORE_V6 != 0 {
        HOST_V6_MORE_BYTES
    } else {
        0
    };
    let body_start = position + FIXED_BYTES + born_v6 + store_v6;
    if body_start > end {
        return None;
    }
    let size = usize::try_from(i32_at(data, position)?).ok()?;
    let magic = u32_at(data, position + MAGIC_AT)?;
    let record_end = position + size;
    let body_end = body_start + usize::try_from(i32_at(data, body_start - 4)?).ok()?;
    if body_end + 3 > record_end || record_end > end {
        return None;
    }
    let (topic_start, topic_size) = match magic {
        MAGIC_V1 => (body_end + 1, usize::from(data[body_end])),
        MAGIC_V2 => (body_end + 2, u16_at(data, body_end)?),
        _ => return None,
    };
    let topic_end = topic_start + topic_size;
    let properties_start = topic_end + 2;
    if properties_start > record_end || u16_at(data, topic_end)? != record_end - properties_start {
        return None;
    }
    let log_offset = i64_at(data, position + LOG_OFFSET_AT)?;
    if let Some(base) = log_base {
        if base.checked_add(position as i64) != Some(log_offset) {
            return None;
        }
    }
    let crc = u32_at(data, position + CRC_AT)?;
    if check_crc && body_crc(&data[body_start..body_end]) != crc {
        return None;
    }
    let (topic, properties) = (
        &data[topic_start..topic_end],
        &data[properties_start..record_end],
    );
    let text = if properties.is_empty() {
        topic
    } else {
        properties
    };
    let sector_at = record_end as i64 + log_base.unwrap_or(0) % HOLE_BYTES as i64;
    if text.last() == Some(&0) && is_torn(data, record_end, end, sector_at) {
        return None;
    }
    if has_hole(properties) {
        return None;
    }
    Some(Found {
        position,
        size,
        magic,
        crc,
        queue_id: i32_at(data, position + QUEUE_ID_AT)?,
        queue_offset: i64_at(data, position + QUEUE_OFFSET_AT)?,
        log_offset,
        sys_flag,
        store_ms: i64_at(data, position + STORE_TIME_AT + born_v6)?,
        body: (body_start, body_end),
        topic: (topic_start, topic_end),
        properties: (properties_start, record_end),
    })
}

/// Whether a record whose text ends with a zero was not written whole; `sector_at` is where it ends on the disk.
fn is_torn(data: &[u8], record_end: usize, end: usize, sector_at: i64) -> bool {
    if record_end == end {
        return false;
    }
    if sector_at % HOLE_BYTES as i64 == 0 || record_end + BLANK_BYTES > end {
        return true;
    }
    !matches!(
        u32_at(data, record_end + MAGIC_AT),
        Some(MAGIC_V1 | MAGIC_V2 | MAGIC_BLANK)
    )
}

/// Where a walk begins and ends, inside of the data; None when nothing lies there.
fn bounds(data: &[u8], start: i64, end: i64) -> Option<(usize, usize)> {
    let end = usize::try_from(end).ok()?.min(data.len());
    let start = usize::try_from(start).ok()?;
    (start <= end).then_some((start, end))
}

fn walk(
    data: &[u8],
    start: i64,
    end: i64,
    check_crc: bool,
    log_base: Option<i64>,
    count_max: usize,
) -> (Vec<Found>, i64) {
    let mut found = Vec::new();
    let (mut position, end) = match bounds(data, start, end) {
        None => return (found, start),
        Some(range) => range,
    };
    while found.len() < count_max {
        match record_at(data, position, end, check_crc, log_base) {
            None => break,
            Some(record) => {
                position += record.size;
                found.push(record);
            }
        }
    }
    (found, position as i64)
}

/// Whether a call walks so much that other Python threads should run.
fn is_long(data: &[u8], start: i64, end: i64) -> bool {
    bounds(data, start, end).map_or(false, |(start, end)| end - start > LONG_BYTES)
}

fn walk_long(
    py: Python<'_>,
    data: &[u8],
    start: i64,
    end: i64,
    check_crc: bool,
    log_base: Option<i64>,
) -> (Vec<Found>, i64) {
    if is_long(data, start, end) {
        py.allow_threads(|| walk(data, start, end, check_crc, log_base, usize::MAX))
    } else {
        walk(data, start, end, check_crc, log_base, usize::MAX)
    }
}

#[pyfunction]
#[pyo3(signature = (data, start, end, check_crc, log_base))]
fn walk_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    start: i64,
    end: i64,
    check_crc: bool,
    log_base: Option<i64>,
) -> PyResult<(Bound<'py, PyList>, i64)> {
    let bytes = data.as_bytes();
    let (found, position) = walk_long(py, bytes, start, end, check_crc, log_base);
    let part = |range: (usize, usize)| PyBytes::new(py, &bytes[range.0..range.1]);
    let list = PyList::empty(py);
    for record in found {
        // More fields than a Rust tuple converts: two halves, joined by a list of objects.
        let numbers = (
            record.position,
            record.size,
            record.magic,
            record.crc,
            record.queue_id,
            record.queue_offset,
            record.log_offset,
            record.sys_flag,
            record.store_ms,
            record.body.0,
            record.body.1 - record.body.0,
        )
            .into_pyobject(py)?;
        let mut fields: Vec<Bound<'py, PyAny>> = Vec::with_capacity(13);
        for number in numbers.iter() {
            fields.push(number);
        }
        fields.push(part(record.topic).into_any());
        fields.push(part(record.properties).into_any());
        list.append(PyTuple::new(py, fields)?)?;
    }
    Ok((list, position))
}

/// The messages of one queue in a piece of the log.
struct Group {
    topic: (usize, usize),
    queue_id: i32,
    first: i64,
    /// None after the last number there is.
    next: Option<i64>,
    units: Vec<u8>,
}

#[derive(Default)]
struct Pieces {
    groups: Vec<Group>,
    count: usize,
    newest_ms: i64,
    position: i64,
    keys: Vec<u8>,
}

/// None when the messages of a queue do not follow each other in number.
fn dispatch(data: &[u8], found: &[Found], with_keys: u8) -> Option<Pieces> {
    let mut out = Pieces {
        count: found.len(),
        ..Pieces::default()
    };
    let mut by_queue: std::collections::HashMap<(&[u8], i32), usize> =
        std::collections::HashMap::new();
    for record in found {
        let topic = &data[record.topic.0..record.topic.1];
        let properties = &data[record.properties.0..record.properties.1];
        out.newest_ms = out.newest_ms.max(record.store_ms);
        let names = find_names(properties);
        let keys = &mut out.keys;
        key_hashes(
            topic,
            properties,
            &names,
            record.sys_flag,
            with_keys,
            |hash| push_key(keys, hash, record.log_offset, record.store_ms),
        );
        if record.sys_flag & PREPARED != 0 {
            continue;
        }
        let groups = &mut out.groups;
        let at = *by_queue.entry((topic, record.queue_id)).or_insert_with(|| {
            groups.push(Group {
                topic: record.topic,
                queue_id: record.queue_id,
                first: record.queue_offset,
                next: Some(record.queue_offset),
                units: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        if group.next != Some(record.queue_offset) {
            return None;
        }
        group.next = record.queue_offset.checked_add(1);
        push_unit(
            &mut group.units,
            record.log_offset,
            i32::try_from(record.size).ok()?,
            tag_code(properties, &names),
        );
    }
    Some(out)
}

type Dispatched<'py> = (Bound<'py, PyList>, usize, i64, i64, Bound<'py, PyBytes>);

#[pyfunction]
#[allow(clippy::too_many_arguments)] // the signature of the plain twin
fn dispatch_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    start: i64,
    end: i64,
    check_crc: bool,
    log_base: i64,
    with_keys: u8,
    count_max: usize,
) -> PyResult<Option<Dispatched<'py>>> {
    let bytes = data.as_bytes();
    let both = || {
        let (found, position) = walk(bytes, start, end, check_crc, Some(log_base), count_max);
        dispatch(bytes, &found, with_keys).map(|pieces| Pieces { position, ..pieces })
    };
    let pieces = if is_long(bytes, start, end) {
        py.allow_threads(both)
    } else {
        both()
    };
    let pieces = match pieces {
        None => return Ok(None),
        Some(pieces) => pieces,
    };
    let groups = PyList::empty(py);
    for group in &pieces.groups {
        let topic = PyBytes::new(py, &bytes[group.topic.0..group.topic.1]);
        groups.append((
            topic,
            group.queue_id,
            group.first,
            PyBytes::new(py, &group.units),
        ))?;
    }
    Ok(Some((
        groups,
        pieces.count,
        pieces.newest_ms,
        pieces.position,
        PyBytes::new(py, &pieces.keys),
    )))
}

#[pyfunction]
fn hash_keys<'py>(
    py: Python<'py>,
    records: &Bound<'py, PySequence>,
    with_keys: u8,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut keys = Vec::new();
    for at in 0..records.len()? {
        let item = records.get_item(at)?;
        let (topic, properties, sys_flag, log_offset, store_ms) =
            item.extract::<(Bound<'_, PyString>, Bound<'_, PyBytes>, i64, i64, i64)>()?;
        // A lone surrogate counts as a question mark.
        let topic = match topic.to_str() {
            Ok(text) => text.as_bytes().to_vec(),
            Err(_) => topic
                .call_method1("encode", ("utf-8", "replace"))?
                .extract()?,
        };
        let properties = properties.as_bytes();
        let names = find_names(properties);
        key_hashes(
            &topic,
            properties,
            &names,
            (sys_flag & 0xFF) as i32,
            with_keys,
            |hash| push_key(&mut keys, hash, log_offset, store_ms),
        );
    }
    Ok(PyBytes::new(py, &keys))
}

#[pyfunction]
fn find_property<'py>(
    py: Python<'py>,
    properties: &Bound<'py, PyBytes>,
    name: &Bound<'py, PyBytes>,
) -> Option<Bound<'py, PyBytes>> {
    find(properties.as_bytes(), name.as_bytes()).map(|value| PyBytes::new(py, value))
}

#[pyfunction(name = "tag_code")]
fn py_tag_code(properties: &Bound<'_, PyBytes>) -> i64 {
    let properties = properties.as_bytes();
    tag_code(properties, &find_names(properties))
}

/// Four bytes of a buffer that others may write, as a number.
fn cells_u32(cells: &[ReadOnlyCell<u8>], at: usize) -> Option<u32> {
    let found = cells.get(at..at + 4)?;
    Some(u32::from_be_bytes([
        found[0].get(),
        found[1].get(),
        found[2].get(),
        found[3].get(),
    ]))
}

/// The size of the record that begins at `at`, if it ends before `end` by its own size.
fn size_at(cells: &[ReadOnlyCell<u8>], at: usize, end: usize) -> Option<usize> {
    if end - at < RECORD_BYTES_MIN {
        return None;
    }
    let magic = cells_u32(cells, at + MAGIC_AT)?;
    let size = usize::try_from(cells_u32(cells, at)? as i32).ok()?;
    let fits = size >= RECORD_BYTES_MIN && size <= end - at;
    (fits && (magic == MAGIC_V1 || magic == MAGIC_V2)).then_some(size)
}

#[pyfunction]
fn record_starts<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    start: usize,
    end: usize,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let cells = data
        .as_slice(py)
        .ok_or_else(|| PyErr::new::<PyValueError, _>("the data is not in one piece"))?;
    let end = end.min(cells.len());
    let mut position = start;
    let mut found = Vec::new();
    while position < end {
        match size_at(cells, position, end) {
            None => break,
            Some(size) => {
                found.extend_from_slice(&(position as i64).to_ne_bytes());
                position += size;
            }
        }
    }
    Ok((PyBytes::new(py, &found), position))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(record_starts, module)?)?;
    module.add_function(wrap_pyfunction!(encode_records, module)?)?;
    module.add_function(wrap_pyfunction!(encode_record, module)?)?;
    module.add_function(wrap_pyfunction!(walk_records, module)?)?;
    module.add_function(wrap_pyfunction!(dispatch_records, module)?)?;
    module.add_function(wrap_pyfunction!(hash_keys, module)?)?;
    module.add_function(wrap_pyfunction!(find_property, module)?)?;
    module.add_function(wrap_pyfunction!(py_tag_code, module)?)
}
