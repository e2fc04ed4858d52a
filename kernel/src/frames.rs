//! The twin of `plain/frames.py`: a stream of bytes into frames, the fields of sends, and the answers to them.
//!
//! What is not written the way every client writes it (and everything broken) goes to the plain functions, which accept it
//! or raise the error: so there is one definition of what is odd, and one text of each error.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::sync::GILOnceCell;
use pyo3::types::{PyBytes, PyList, PyString};

pub mod json;

use crate::layout::{BINARY_MIN, PROPERTIES_BYTES_MAX};
use crate::pulls::pull_fields;
use crate::sends::Run;
use json::{Scan, Value};

const JSON: u8 = 0;
pub const ROCKETMQ: u8 = 1;
pub const RESPONSE: i32 = 1;
const SEND: i32 = 10;
const SEND_V2: i32 = 310;
pub const SEND_BATCH: i32 = 320;
const PULL: i32 = 11;
const LITE_PULL: i32 = 361;
pub const PYTHON: u8 = 3;
const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
];
const OTHER: i64 = 7;
const LONG_NAMES: [&[u8]; 13] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
];

/// The plain definition: its classes, and its functions for what is odd.
struct Plain {
    frame: Py<PyAny>,
    send_fields: Py<PyAny>,
    answer_fields: Py<PyAny>,
    parse_header: Py<PyAny>,
    read_send: Py<PyAny>,
    stored_properties: Py<PyAny>,
    read_send_answer: Py<PyAny>,
    version: i64,
}

pub fn version(py: Python<'_>) -> PyResult<i64> {
    Ok(plain(py)?.version)
}

static PLAIN: GILOnceCell<Plain> = GILOnceCell::new();

fn plain(py: Python<'_>) -> PyResult<&'static Plain> {
    PLAIN.get_or_try_init(py, || {
        let module = py.import("orbitmq.kernel.plain.frames")?;
        let get = |name: &str| -> PyResult<Py<PyAny>> { Ok(module.getattr(name)?.unbind()) };
        Ok(Plain {
            frame: get("Frame")?,
            send_fields: get("SendFields")?,
            answer_fields: get("SendAnswerFields")?,
            parse_header: get("parse_header")?,
            read_send: get("read_send")?,
            stored_properties: get("stored_properties")?,
            read_send_answer: get("read_send_answer")?,
            version: module.getattr("_VERSION")?.extract()?,
        })
    })
}

fn be_i32(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// What every frame's header says.
pub struct Header<'a> {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    version: i32,
    language: i64,
    remark: Option<Cow<'a, str>>,
    pub ext: &'a [u8],
}

impl Header<'_> {
    pub fn is_send(&self) -> bool {
        matches!(self.code, SEND | SEND_V2 | SEND_BATCH) && self.flag & RESPONSE == 0
    }
}

fn read_binary(header: &[u8]) -> Option<Header<'_>> {
    if header.len() < BINARY_MIN {
        return None;
    }
    let remark_length = be_i32(header, 13);
    let mut at: usize = 17;
    let mut remark = None;
    if remark_length != 0 {
        let end = at.checked_add(usize::try_from(remark_length).ok()?)?;
        if end + 4 > header.len() {
            return None;
        }
        remark = Some(Cow::Borrowed(std::str::from_utf8(&header[at..end]).ok()?));
        at = end;
    }
    let ext_length = usize::try_from(be_i32(header, at)).ok()?;
    at += 4;
    if ext_length > header.len() - at {
        return None;
    }
    Some(Header {
        code: i32::from(i16::from_be_bytes([header[0], header[1]])),
        language: i64::from(header[2]),
        version: i32::from(i16::from_be_bytes([header[3], header[4]])),
        opaque: be_i32(header, 5),
        flag: be_i32(header, 9),
        remark,
        ext: &header[at..at + ext_length],
    })
}

fn read_json(header: &[u8]) -> Option<Header<'_>> {
    let text = std::str::from_utf8(header).ok()?;
    let mut found = Header {
        code: 0,
        opaque: 0,
        flag: 0,
        version: 0,
        language: 0,
        remark: None,
        ext: b"",
    };
    Scan::object(text, |key, value| {
        match (key.as_ref(), value) {
            ("code", Value::Int(number)) => found.code = i32::try_from(number).ok()?,
            ("flag", Value::Int(number)) => found.flag = i32::try_from(number).ok()?,
            ("opaque", Value::Int(number)) => found.opaque = i32::try_from(number).ok()?,
            ("version", Value::Int(number)) => found.version = i32::try_from(number).ok()?,
            ("language", Value::Int(number)) => found.language = number,
            ("language", Value::Text(name)) => {
                found.language = if name.is_empty() {
                    0
                } else {
                    LANGUAGES
                        .iter()
                        .position(|known| *known == name)
                        .map_or(OTHER, |at| at as i64)
                }
            }
            ("language", Value::Null) => found.language = 0,
            ("remark", Value::Text(remark)) => found.remark = Some(remark),
            ("remark", Value::Null) => found.remark = None,
            ("extFields", Value::Object(raw)) => found.ext = raw.as_bytes(),
            ("extFields", Value::Null) => found.ext = b"null",
            ("code" | "flag" | "opaque" | "version" | "language" | "remark" | "extFields", _) => {
                return None
            }
            (_, Value::Object(_)) => return None,
            _ => {}
        }
        Some(())
    })?;
    Some(found)
}

/// Calls `each` for every extension field that is present. None: they are not texts and nothing else.
fn each_field<'a>(
    form: u8,
    ext: &'a [u8],
    mut each: impl FnMut(&[u8], Cow<'a, str>) -> Option<()>,
) -> Option<()> {
    if form != ROCKETMQ {
        if ext.is_empty() || ext == b"null" {
            return Some(());
        }
        return Scan::object(std::str::from_utf8(ext).ok()?, |key, value| match value {
            Value::Text(text) => each(key.as_bytes(), text),
            Value::Null => Some(()),
            _ => None,
        });
    }
    let mut at = 0;
    while at < ext.len() {
        let key_start = at + 2;
        if key_start > ext.len() {
            return None;
        }
        let key_end = key_start + usize::from(u16::from_be_bytes([ext[at], ext[at + 1]]));
        let value_start = key_end + 4;
        if value_start > ext.len() {
            return None;
        }
        let length = u32::from_be_bytes([
            ext[key_end],
            ext[key_end + 1],
            ext[key_end + 2],
            ext[key_end + 3],
        ]);
        let value_end = value_start.checked_add(usize::try_from(length).ok()?)?;
        if value_end > ext.len() {
            return None;
        }
        if key_end > key_start && value_end > value_start {
            std::str::from_utf8(&ext[key_start..key_end]).ok()?;
            let value = std::str::from_utf8(&ext[value_start..value_end]).ok()?;
            each(&ext[key_start..key_end], Cow::Borrowed(value))?;
        }
        at = value_end;
    }
    Some(())
}

/// `[+-]?[0-9]{1,40}` in the range of an i64.
fn number(text: &str) -> Option<i64> {
    let digits = text
        .strip_prefix(|sign| sign == '+' || sign == '-')
        .unwrap_or(text);
    if digits.is_empty() || digits.len() > 40 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn number32(text: &Option<Cow<'_, str>>) -> Option<i32> {
    i32::try_from(number(text.as_ref()?)?).ok()
}

fn number32_or(text: &Option<Cow<'_, str>>, default: i32) -> Option<i32> {
    match text {
        None => Some(default),
        Some(_) => number32(text),
    }
}

fn boolean(text: &Option<Cow<'_, str>>) -> Option<bool> {
    match text.as_deref() {
        None | Some("false") => Some(false),
        Some("true") => Some(true),
        _ => None,
    }
}

fn send_values<'a>(code: i32, form: u8, ext: &'a [u8]) -> Option<[Option<Cow<'a, str>>; 13]> {
    let mut found: [Option<Cow<'a, str>>; 13] = Default::default();
    each_field(form, ext, |key, value| {
        let place = if code == SEND {
            LONG_NAMES.iter().position(|name| *name == key)
        } else if key.len() == 1 && (b'a'..=b'm').contains(&key[0]) {
            Some(usize::from(key[0] - b'a'))
        } else {
            None
        };
        match place {
            Some(place) => found[place] = Some(value),
            None if matches!(key, b"nsd" | b"oway" | b"lo")
                && value != "true"
                && value != "false" =>
            {
                return None
            }
            None => {}
        }
        Some(())
    })?;
    Some(found)
}

/// The fields of a send; texts are empty and numbers 0 where they may be missing.
pub struct SendValues<'a> {
    producer_group: Cow<'a, str>,
    pub topic: Cow<'a, str>,
    default_topic: Cow<'a, str>,
    default_topic_queue_nums: i32,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub flag: i32,
    pub properties: Cow<'a, str>,
    pub reconsume_times: i32,
    max_reconsume_times: Option<i32>,
    pub batch: bool,
}

/// None when a field is missing or not written the usual way.
pub fn read_values(code: i32, form: u8, ext: &[u8]) -> Option<SendValues<'_>> {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m] = send_values(code, form, ext)?;
    boolean(&k)?;
    Some(SendValues {
        producer_group: a.unwrap_or_default(),
        topic: b?,
        default_topic: c.unwrap_or_default(),
        default_topic_queue_nums: number32_or(&d, 0)?,
        queue_id: number32(&e)?,
        sys_flag: number32(&f)?,
        born_ms: number(g.as_deref()?)?,
        flag: number32(&h)?,
        properties: i.unwrap_or_default(),
        reconsume_times: number32_or(&j, 0)?,
        max_reconsume_times: match l {
            None => None,
            Some(_) => Some(number32(&l)?),
        },
        batch: boolean(&m)?,
    })
}

fn send_fields<'py>(
    py: Python<'py>,
    code: i32,
    form: u8,
    ext: &[u8],
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let values = read_values(code, form, ext)?;
    let arguments = (
        values.producer_group,
        values.topic,
        values.default_topic,
        values.default_topic_queue_nums,
        values.queue_id,
        values.sys_flag,
        values.born_ms,
        values.flag,
        PyBytes::new(py, values.properties.as_bytes()),
        values.reconsume_times,
        values.max_reconsume_times,
        values.batch,
    );
    Some(plain(py).and_then(|plain| plain.send_fields.bind(py).call1(arguments)))
}

/// See `plain.read_send`.
#[pyfunction]
fn read_send<'py>(
    py: Python<'py>,
    code: i32,
    form: u8,
    ext_raw: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    match send_fields(py, code, form, ext_raw) {
        Some(found) => found,
        None => plain(py)?
            .read_send
            .bind(py)
            .call1((code, form, PyBytes::new(py, ext_raw))),
    }
}

pub fn frame<'py>(
    py: Python<'py>,
    form: u8,
    header: &[u8],
    body: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    built(py, form, header, read_header(form, header), body)
}

fn read_header(form: u8, header: &[u8]) -> Option<Header<'_>> {
    match form {
        ROCKETMQ => read_binary(header),
        JSON => read_json(header),
        _ => None,
    }
}

fn built<'py>(
    py: Python<'py>,
    form: u8,
    header: &[u8],
    found: Option<Header<'_>>,
    body: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let plain = plain(py)?;
    let body = PyBytes::new(py, body);
    let found = match found {
        Some(found) => found,
        None => {
            return plain
                .parse_header
                .bind(py)
                .call1((form, PyBytes::new(py, header), body))
        }
    };
    let send = if found.is_send() {
        Some(read_send(py, found.code, form, found.ext)?)
    } else {
        None
    };
    let is_pull = matches!(found.code, PULL | LITE_PULL) && found.flag & RESPONSE == 0;
    let pull = if is_pull {
        pull_fields(py, found.ext, form == ROCKETMQ)?
    } else {
        None
    };
    plain.frame.bind(py).call1((
        found.code,
        found.opaque,
        found.flag,
        found.version,
        found.language,
        form,
        found.remark.as_deref(),
        PyBytes::new(py, found.ext),
        body,
        send,
        pull,
    ))
}

type Split<'py> = (Bound<'py, PyList>, usize, usize, String);

/// See `plain.split_frames`.
#[pyfunction]
fn split_frames<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    frame_bytes_max: i64,
) -> PyResult<Split<'py>> {
    split_requests(py, data, frame_bytes_max, 0)
}

/// See `plain.split_requests`.
#[pyfunction]
fn split_requests<'py>(
    py: Python<'py>,
    bytes: &Bound<'py, PyBytes>,
    frame_bytes_max: i64,
    sends_max: usize,
) -> PyResult<Split<'py>> {
    let data = bytes.as_bytes();
    let found = PyList::empty(py);
    let mut run = Run::default();
    let limit = frame_bytes_max - 4;
    let mut at = 0;
    let (needed, error) = loop {
        if data.len() - at < 4 {
            break (4, String::new());
        }
        let size = i64::from(be_i32(data, at));
        if size < 4 || size > limit {
            break (0, format!("frame length {size} is outside 4..{limit}"));
        }
        if data.len() - at < 8 {
            break (8, String::new());
        }
        let size = size as usize;
        let word = u32::from_be_bytes([data[at + 4], data[at + 5], data[at + 6], data[at + 7]]);
        let header_length = (word & 0xff_ffff) as usize;
        if header_length > size - 4 {
            let text =
                format!("header length {header_length} is longer than its frame of {size} bytes");
            break (0, text);
        }
        if data.len() - at < size + 4 {
            break (size + 4, String::new());
        }
        let (form, start) = ((word >> 24) as u8, at + 8);
        let (body_start, end) = (start + header_length, at + 4 + size);
        let header = &data[start..body_start];
        let read = read_header(form, header);
        if let Some(read) = read.as_ref().filter(|_| sends_max > 0) {
            if run.add(data, form, read, (start, body_start, end)) {
                if run.len() >= sends_max {
                    found.append(run.close(bytes)?)?;
                }
                at = end;
                continue;
            }
        }
        if run.len() > 0 {
            found.append(run.close(bytes)?)?;
        }
        match built(py, form, header, read, &data[body_start..end]) {
            Ok(frame) => found.append(frame)?,
            Err(error) => {
                let class = py.import("orbitmq.errors")?.getattr("FrameError")?;
                if error.matches(py, &class)? {
                    break (0, error.value(py).str()?.to_string());
                }
                return Err(error);
            }
        }
        at = end;
    };
    if run.len() > 0 {
        found.append(run.close(bytes)?)?;
    }
    Ok((found, at, needed, error))
}

/// What the pairs of a property text say, if the text can be stored as it is.
pub struct AsTheyAre<'a> {
    pub unique_key: &'a [u8],
    pub waits: bool,
    pub asks: bool,
    /// The last pair has no terminator.
    pub is_open: bool,
}

/// None for a text that must be written anew, and for one with a name that `refused` refuses.
pub fn as_they_are(raw: &[u8], refused: impl Fn(&[u8]) -> bool) -> Option<AsTheyAre<'_>> {
    let mut found = AsTheyAre {
        unique_key: b"",
        waits: true,
        asks: false,
        is_open: false,
    };
    let mut names: [&[u8]; 32] = [b""; 32];
    let mut count = 0;
    let mut rest = raw;
    while !rest.is_empty() {
        let end = memchr::memchr(2, rest).unwrap_or_else(|| {
            found.is_open = true;
            rest.len()
        });
        let pair = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        let middle = memchr::memchr(1, pair)?;
        let (name, value) = (&pair[..middle], &pair[middle + 1..]);
        if name.is_empty()
            || value.is_empty()
            || count == names.len()
            || names[..count].contains(&name)
            || refused(name)
        {
            return None;
        }
        names[count] = name;
        count += 1;
        match name {
            b"UNIQ_KEY" => found.unique_key = value,
            b"WAIT" => found.waits = value != b"false",
            b"DELAY"
            | b"TRAN_MSG"
            | b"TIMER_DELAY_SEC"
            | b"TIMER_DELAY_MS"
            | b"TIMER_DELIVER_MS"
            | b"ORBITMQ_IDEMPOTENT" => found.asks = true,
            b"POP_CK" => return None,
            _ => {}
        }
    }
    Some(found)
}

/// See `plain.stored_properties`.
#[pyfunction]
fn stored_properties<'py>(
    py: Python<'py>,
    raw: &[u8],
    added: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    // One of our names among the sender's keeps its position and gets our value, so the text is rewritten.
    let ours: Vec<&[u8]> = added
        .split(|byte| *byte == 2)
        .filter_map(|pair| pair.split(|byte| *byte == 1).next())
        .collect();
    let whole = std::str::from_utf8(raw).is_ok() && std::str::from_utf8(added).is_ok();
    let found = as_they_are(raw, |name| ours.contains(&name)).filter(|_| whole);
    if let Some(found) = found {
        let size = raw.len() + usize::from(found.is_open) + added.len();
        let fits = as_they_are(added, |_| false).map_or(false, |added| !added.is_open);
        if size <= PROPERTIES_BYTES_MAX && fits {
            let properties = PyBytes::new_with(py, size, |out| {
                out[raw.len()..size - added.len()].fill(2);
                out[..raw.len()].copy_from_slice(raw);
                out[size - added.len()..].copy_from_slice(added);
                Ok(())
            })?;
            return Ok((
                properties,
                PyBytes::new(py, found.unique_key),
                found.waits,
                found.asks,
            )
                .into_pyobject(py)?
                .into_any());
        }
    }
    plain(py)?
        .stored_properties
        .bind(py)
        .call1((PyBytes::new(py, raw), PyBytes::new(py, added)))
}

pub fn write_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    if !value.is_empty() {
        out.extend_from_slice(&(key.len() as u16).to_be_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
    }
}

pub fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        out.push(HEX[(byte >> 4) as usize]);
        out.push(HEX[(byte & 15) as usize]);
    }
}

/// See `plain.encode_send_fields`.
#[allow(clippy::too_many_arguments)] // seven and the interpreter
#[pyfunction]
fn encode_send_fields<'py>(
    py: Python<'py>,
    origin: (Bound<'py, PyString>, Bound<'py, PyString>, i64),
    target: (Bound<'py, PyString>, Bound<'py, PyString>, i64),
    properties: &[u8],
    born_ms: i64,
    sys_flag: i64,
    flag: i64,
    batch: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::with_capacity(256 + properties.len());
    write_entry(&mut out, b"a", origin.0.to_cow()?.as_bytes());
    write_entry(&mut out, b"b", target.0.to_cow()?.as_bytes());
    write_entry(&mut out, b"c", origin.1.to_cow()?.as_bytes());
    for (key, value) in [
        (b"d", origin.2),
        (b"e", target.2),
        (b"f", sys_flag),
        (b"g", born_ms),
        (b"h", flag),
    ]
    .iter()
    {
        write_entry(&mut out, *key, value.to_string().as_bytes());
    }
    write_entry(&mut out, b"i", properties);
    write_entry(&mut out, b"j", b"0");
    write_entry(&mut out, b"k", b"false");
    write_entry(&mut out, b"m", if batch { b"true" } else { b"false" });
    write_entry(&mut out, b"n", target.1.to_cow()?.as_bytes());
    Ok(PyBytes::new(py, &out))
}

fn answer_fields<'py>(
    py: Python<'py>,
    form: u8,
    ext: &[u8],
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let mut found: [Option<Cow<'_, str>>; 7] = Default::default();
    each_field(form, ext, |key, value| {
        let place = match key {
            b"queueId" => 0,
            b"queueOffset" => 1,
            b"msgId" => 2,
            b"transactionId" => 3,
            b"MSG_REGION" => 4,
            b"TRACE_ON" => 5,
            b"recallHandle" => 6,
            _ => return Some(()),
        };
        found[place] = Some(value);
        Some(())
    })?;
    let queue_id = match &found[0] {
        None => None,
        Some(_) => Some(number32(&found[0])?),
    };
    let queue_offset = match &found[1] {
        None => -1,
        Some(text) => number(text)?,
    };
    let arguments = (
        queue_id,
        queue_offset,
        found[2].as_deref().unwrap_or(""),
        found[3].as_deref(),
        found[4].as_deref(),
        found[5].as_deref() != Some("false"),
        found[6].as_deref(),
    );
    Some(plain(py).and_then(|plain| plain.answer_fields.bind(py).call1(arguments)))
}

/// See `plain.read_send_answer`.
#[pyfunction]
fn read_send_answer<'py>(py: Python<'py>, form: u8, ext_raw: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match answer_fields(py, form, ext_raw) {
        Some(found) => found,
        None => plain(py)?
            .read_send_answer
            .bind(py)
            .call1((form, PyBytes::new(py, ext_raw))),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(split_frames, module)?)?;
    module.add_function(wrap_pyfunction!(split_requests, module)?)?;
    module.add_function(wrap_pyfunction!(read_send, module)?)?;
    module.add_function(wrap_pyfunction!(stored_properties, module)?)?;
    module.add_function(wrap_pyfunction!(encode_send_fields, module)?)?;
    module.add_function(wrap_pyfunction!(read_send_answer, module)?)
}
