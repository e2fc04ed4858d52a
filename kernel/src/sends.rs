//! The twin of `plain/sends.py`: the sends of a read as one value, the records of all of a turn, and their answers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::frames::json::write_text;
use crate::frames::{
    as_they_are, frame, read_values, version, write_entry, write_hex, Header, PYTHON, RESPONSE,
    ROCKETMQ, SEND_BATCH,
};
use crate::layout::*;
use crate::properties::find;
use crate::records::{
    record_bytes, refused, split_entry, Append, Fields, Message, Place, RecordError, Records, Room,
};

const ONEWAY: i32 = 2;

/// A part of the bytes of a read, or of texts that had to be rewritten.
#[derive(Clone, Copy, Default)]
struct Text {
    start: usize,
    end: usize,
    is_own: bool,
}

/// One send.
#[derive(Clone)]
struct One {
    /// Where its header begins and where its body begins and ends; none for one that was made from a message.
    frame: Option<(usize, usize, usize)>,
    form: u8,
    code: i32,
    opaque: i32,
    flag: i32,
    waits: bool,
    is_batch: bool,
    /// Of `queues`.
    queue: usize,
    answered_queue_id: i32,
    body: Text,
    /// Of all messages.
    body_bytes: usize,
    count: usize,
    properties: Text,
    is_open: bool,
    key: Text,
    handle: Text,
    born_ms: i64,
    message_flag: i32,
    sys_flag: i32,
    times: i32,
    prepared: i64,
    /// Of its first message, once it is encoded.
    queue_offset: i64,
    /// Its part of `log_offsets`, once it is encoded.
    stored: (usize, usize),
}

#[pyclass(module = "orbitmq_kernel")]
pub struct Sends {
    data: Py<PyBytes>,
    own: Arc<Vec<u8>>,
    ones: Vec<One>,
    queues: Vec<(String, i32)>,
    born_host: Vec<u8>,
    added: Vec<u8>,
    log_offsets: Vec<i64>,
}

fn slot_of(queues: &mut Vec<(String, i32)>, topic: &str, queue_id: i32) -> usize {
    let known = queues
        .iter()
        .position(|(name, id)| *id == queue_id && name == topic);
    known.unwrap_or_else(|| {
        queues.push((topic.to_owned(), queue_id));
        queues.len() - 1
    })
}

/// Where a text stands in `data`; what does not is kept in `own`.
fn place(data: &[u8], own: &mut Vec<u8>, text: Cow<'_, str>) -> Text {
    match text {
        Cow::Borrowed(text) => within(data, text.as_bytes()),
        Cow::Owned(text) => keep(own, text.as_bytes()),
    }
}

/// Where a part of `data` stands in it.
fn within(data: &[u8], part: &[u8]) -> Text {
    let start = (part.as_ptr() as usize).wrapping_sub(data.as_ptr() as usize);
    Text {
        start,
        end: start.wrapping_add(part.len()),
        is_own: false,
    }
}

fn keep(own: &mut Vec<u8>, text: &[u8]) -> Text {
    let start = own.len();
    own.extend_from_slice(text);
    Text {
        start,
        end: own.len(),
        is_own: true,
    }
}

fn cut<'a>(data: &'a [u8], own: &'a [u8], text: Text) -> &'a [u8] {
    let from = if text.is_own { own } else { data };
    from.get(text.start..text.end).unwrap_or_default()
}

/// Count of the messages of a batch and size of their bodies; None for a body that is not a batch.
fn measure(data: &[u8]) -> Option<(usize, usize)> {
    let (mut count, mut bytes, mut position) = (0, 0, 0);
    while position < data.len() {
        let entry = split_entry(data, position).ok()?;
        count += 1;
        bytes += entry.body.len();
        position = entry.end;
    }
    (count > 0).then_some((count, bytes))
}

/// A name that makes a message more than a plain one: the broker sets it itself, or acts on it.
fn is_special(name: &[u8]) -> bool {
    matches!(
        name,
        b"MSG_REGION" | b"TRACE_ON" | b"CLUSTER" | b"_SYS_MSG_PRIORITY_"
    )
}

/// The plain sends of a read that follow each other.
#[derive(Default)]
pub struct Run {
    ones: Vec<One>,
    own: Vec<u8>,
    queues: Vec<(String, i32)>,
}

impl Run {
    pub fn len(&self) -> usize {
        self.ones.len()
    }

    /// Adds a request; false if it is not a plain send.
    pub fn add(
        &mut self,
        data: &[u8],
        form: u8,
        header: &Header<'_>,
        frame: (usize, usize, usize),
    ) -> bool {
        let one = self.read(data, form, header, frame);
        let is_plain = one.is_some();
        self.ones.extend(one);
        is_plain
    }

    fn read(
        &mut self,
        data: &[u8],
        form: u8,
        header: &Header<'_>,
        frame: (usize, usize, usize),
    ) -> Option<One> {
        let (_, body_start, end) = frame;
        if !header.is_send() || body_start == end {
            return None;
        }
        let values = read_values(header.code, form, header.ext)?;
        if values.queue_id < 0
            || values.sys_flag & ROLLED_BACK != 0
            || values.topic.is_empty()
            || values.topic.starts_with("%RETRY%")
            || values.topic.contains('\0')
        {
            return None;
        }
        let is_batch = values.batch || header.code == SEND_BATCH;
        let raw = values.properties.as_bytes();
        let body = &data[body_start..end];
        let (key, waits, is_open, count, body_bytes) = if is_batch {
            let more = find(raw, b"DELAY").or_else(|| find(raw, b"ORBITMQ_IDEMPOTENT"));
            if more.is_some() || values.topic.len() > TOPIC_BYTES_MAX_V1 {
                return None;
            }
            let (count, body_bytes) = measure(body)?;
            let waits = find(raw, b"WAIT") != Some(b"false");
            let key = find(raw, b"UNIQ_KEY").unwrap_or_default();
            (key, waits, false, count, body_bytes)
        } else {
            let found = as_they_are(raw, is_special)?;
            let fits = raw.len() + usize::from(found.is_open) <= PROPERTIES_BYTES_MAX
                && values.topic.len() <= TOPIC_BYTES_MAX;
            if found.asks || found.unique_key.is_empty() || !fits {
                return None;
            }
            (
                found.unique_key,
                found.waits,
                found.is_open,
                1,
                end - body_start,
            )
        };
        let key = within(raw, key);
        let properties = place(data, &mut self.own, values.properties);
        // An empty key may point anywhere.
        let key = if key.end == key.start || key.end > properties.end - properties.start {
            Text::default()
        } else {
            Text {
                start: properties.start + key.start,
                end: properties.start + key.end,
                is_own: properties.is_own,
            }
        };
        Some(One {
            frame: Some(frame),
            form,
            code: header.code,
            opaque: header.opaque,
            flag: header.flag,
            waits,
            is_batch,
            queue: slot_of(&mut self.queues, &values.topic, values.queue_id),
            answered_queue_id: values.queue_id,
            body: Text {
                start: body_start,
                end,
                is_own: false,
            },
            body_bytes,
            count,
            properties,
            is_open,
            key,
            handle: Text::default(),
            born_ms: values.born_ms,
            message_flag: if is_batch { 0 } else { values.flag },
            sys_flag: values.sys_flag,
            times: values.reconsume_times,
            prepared: 0,
            queue_offset: 0,
            stored: (0, 0),
        })
    }

    /// Hands out what was added, as one value.
    pub fn close<'py>(&mut self, data: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, Sends>> {
        let run = std::mem::take(self);
        Bound::new(
            data.py(),
            Sends {
                data: data.clone().unbind(),
                own: Arc::new(run.own),
                ones: run.ones,
                queues: run.queues,
                born_host: Vec::new(),
                added: Vec::new(),
                log_offsets: Vec::new(),
            },
        )
    }
}

/// A message as Python knows it: the fields of `Message`.
type MessageTuple<'py> = (
    &'py str,
    i32,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    i64,
    Bound<'py, PyBytes>,
    i32,
    i32,
    i32,
    i64,
);

impl Sends {
    fn text<'a>(&'a self, data: &'a [u8], text: Text) -> &'a [u8] {
        cut(data, &self.own, text)
    }

    /// Calls `each` for every message of a send. `scratch` holds its properties meanwhile.
    fn each_message(
        &self,
        data: &[u8],
        one: &One,
        scratch: &mut Vec<u8>,
        mut each: impl FnMut(&Message<'_>) -> PyResult<()>,
    ) -> PyResult<()> {
        let body = self.text(data, one.body);
        let shared = Message {
            queue_id: self.queues[one.queue].1,
            body,
            properties: b"",
            born_ms: one.born_ms,
            born_host: &self.born_host,
            flag: one.message_flag,
            sys_flag: one.sys_flag,
            times: one.times,
            prepared: one.prepared,
        };
        if !one.is_batch {
            scratch.clear();
            scratch.extend_from_slice(self.text(data, one.properties));
            if one.is_open {
                scratch.push(2);
            }
            scratch.extend_from_slice(&self.added);
            return each(&Message {
                properties: scratch,
                ..shared
            });
        }
        if body.is_empty() {
            return Err(RecordError::new_err("the batch is empty"));
        }
        let (mut count, mut position) = (0, 0);
        while position < body.len() {
            let entry = split_entry(body, position)
                .map_err(|reason| RecordError::new_err(format!("batch entry {count}: {reason}")))?;
            each(&Message {
                body: entry.body,
                properties: entry.properties,
                flag: entry.flag,
                ..shared
            })?;
            count += 1;
            position = entry.end;
        }
        Ok(())
    }

    /// Size of the records of a send; too small for a malformed batch, which is refused when its records are written.
    fn record_bytes(&self, data: &[u8], one: &One, store_host: usize) -> usize {
        let (hosts, topic) = (
            self.born_host.len() + store_host,
            self.queues[one.queue].0.len(),
        );
        let stored = |text: &[u8]| text.len() + usize::from(text.last() == Some(&0));
        let body = self.text(data, one.body);
        if !one.is_batch {
            let own = self.text(data, one.properties);
            let before = match (self.added.is_empty(), one.is_open) {
                (true, false) => stored(own),
                (_, is_open) => own.len() + usize::from(is_open),
            };
            return record_bytes(hosts, topic, body.len(), before + stored(&self.added));
        }
        let (mut bytes, mut position) = (0, 0);
        while position < body.len() {
            match split_entry(body, position) {
                Err(_) => break,
                Ok(entry) => {
                    bytes += record_bytes(hosts, topic, entry.body.len(), stored(entry.properties));
                    position = entry.end;
                }
            }
        }
        bytes
    }

    fn answer(&self, out: &mut Answers<'_>, data: &[u8], one: &One, code: i32) -> PyResult<()> {
        let (start, end) = one.stored;
        if start == end {
            return Err(PyValueError::new_err("a send that is not stored"));
        }
        let key = String::from_utf8_lossy(self.text(data, one.key));
        let handle = String::from_utf8_lossy(self.text(data, one.handle));
        out.write(
            (one.form, code, one.opaque),
            (one.answered_queue_id, one.queue_offset),
            &self.log_offsets[start..end],
            (&key, &handle),
        )
    }
}

#[pymethods]
impl Sends {
    #[classattr]
    #[pyo3(name = "pull")]
    fn no_pull() -> Option<i32> {
        None
    }

    #[classattr]
    fn flag() -> i32 {
        0
    }

    #[getter]
    fn code(&self) -> i32 {
        self.ones.first().map_or(0, |one| one.code)
    }

    #[getter]
    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pairs = self
            .queues
            .iter()
            .map(|(topic, queue_id)| (topic, *queue_id));
        PyList::new(py, pairs)
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.ones
            .iter()
            .map(|one| one.body.end - one.body.start)
            .sum()
    }

    #[getter]
    fn body_bytes_max(&self) -> usize {
        self.ones
            .iter()
            .map(|one| one.body_bytes)
            .max()
            .unwrap_or(0)
    }

    #[getter]
    fn request_count(&self) -> usize {
        self.ones.len()
    }

    #[getter]
    fn is_batch(&self) -> bool {
        self.ones.iter().any(|one| one.is_batch)
    }

    #[getter]
    fn waits(&self) -> bool {
        self.ones
            .iter()
            .any(|one| one.waits && one.flag & ONEWAY == 0)
    }

    fn __len__(&self) -> usize {
        self.ones.len()
    }

    fn has_key(&self, py: Python<'_>, unique_key: &[u8]) -> bool {
        let data = self.data.as_bytes(py);
        self.ones
            .iter()
            .any(|one| self.text(data, one.key) == unique_key)
    }

    fn frames<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let data = self.data.as_bytes(py);
        self.ones
            .iter()
            .map(|one| {
                let (start, body, end) = one
                    .frame
                    .ok_or_else(|| PyValueError::new_err("a send without a frame"))?;
                frame(py, one.form, &data[start..body], &data[body..end])
            })
            .collect()
    }

    fn requests(&self) -> Vec<(u8, i32, i32)> {
        self.ones
            .iter()
            .map(|one| (one.form, one.opaque, one.flag))
            .collect()
    }

    fn part(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<Sends> {
        let chosen = self
            .ones
            .get(start..end)
            .ok_or_else(|| PyIndexError::new_err("no such part"))?;
        let (mut ones, mut queues) = (chosen.to_vec(), Vec::new());
        for one in &mut ones {
            let (topic, queue_id) = &self.queues[one.queue];
            one.queue = slot_of(&mut queues, topic, *queue_id);
            one.stored = (0, 0);
        }
        Ok(Sends {
            data: self.data.clone_ref(py),
            own: Arc::clone(&self.own),
            ones,
            queues,
            born_host: self.born_host.clone(),
            added: self.added.clone(),
            log_offsets: Vec::new(),
        })
    }

    fn stamp(&mut self, born_host: &[u8], added: &[u8], body_bytes_max: usize) -> bool {
        self.born_host = born_host.to_vec();
        self.added = added.to_vec();
        self.ones.iter().all(|one| {
            let properties = one.properties.end - one.properties.start;
            one.body_bytes <= body_bytes_max
                && (one.is_batch
                    || properties + usize::from(one.is_open) + added.len() <= PROPERTIES_BYTES_MAX)
        })
    }

    fn messages<'py>(&'py self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (data, mut scratch) = (self.data.as_bytes(py), Vec::new());
        let found = PyList::empty(py);
        for one in &self.ones {
            let topic = &self.queues[one.queue].0;
            self.each_message(data, one, &mut scratch, |message| {
                let tuple: MessageTuple<'_> = (
                    topic,
                    message.queue_id,
                    PyBytes::new(py, message.body),
                    PyBytes::new(py, message.properties),
                    message.born_ms,
                    PyBytes::new(py, message.born_host),
                    message.flag,
                    message.sys_flag,
                    message.times,
                    message.prepared,
                );
                found.append(tuple)
            })?;
        }
        Ok(found)
    }

    fn stored_at(&mut self, log_offsets: Vec<i64>, queue_offset: i64) -> PyResult<()> {
        match self.ones.as_mut_slice() {
            [one] if !log_offsets.is_empty() => {
                one.queue_offset = queue_offset;
                one.stored = (0, log_offsets.len());
                self.log_offsets = log_offsets;
                Ok(())
            }
            _ => Err(PyValueError::new_err(
                "one send and a place for it are needed",
            )),
        }
    }
}

/// See `plain.sends_of`.
#[pyfunction]
fn sends_of(
    message: &Bound<'_, PyAny>,
    is_batch: bool,
    request: (u8, i32, i32),
    waits: bool,
    queue_id: i32,
    unique_key: &[u8],
    recall_handle: &str,
) -> PyResult<Sends> {
    let fields = if is_batch {
        Fields::of_template(message)?
    } else {
        Fields::of(message)?
    };
    let (mut own, mut queues) = (Vec::new(), Vec::new());
    let found = fields.message();
    let (count, body_bytes) = if is_batch {
        measure(found.body).unwrap_or((0, 0))
    } else {
        (1, found.body.len())
    };
    let queue = slot_of(&mut queues, fields.topic()?, found.queue_id);
    let (form, opaque, flag) = request;
    let one = One {
        frame: None,
        form,
        code: 0,
        opaque,
        flag,
        waits,
        is_batch,
        queue,
        answered_queue_id: queue_id,
        body: Text {
            start: 0,
            end: found.body.len(),
            is_own: false,
        },
        body_bytes,
        count,
        properties: keep(&mut own, found.properties),
        is_open: false,
        key: keep(&mut own, unique_key),
        handle: keep(&mut own, recall_handle.as_bytes()),
        born_ms: found.born_ms,
        message_flag: found.flag,
        sys_flag: found.sys_flag,
        times: found.times,
        prepared: found.prepared,
        queue_offset: 0,
        stored: (0, 0),
    };
    Ok(Sends {
        born_host: found.born_host.to_vec(),
        data: fields.body.clone().unbind(),
        own: Arc::new(own),
        ones: vec![one],
        queues,
        added: Vec::new(),
        log_offsets: Vec::new(),
    })
}

type Turn<'py> = Vec<PyRefMut<'py, Sends>>;

fn turn_of<'py>(turn: &Bound<'py, PyAny>) -> PyResult<Turn<'py>> {
    turn.try_iter()?
        .map(|item| Ok(item?.downcast::<Sends>()?.try_borrow_mut()?))
        .collect()
}

/// The queues of a turn in the order of their first use, and for each value the places of its queues among them.
fn queues_of(turn: &[PyRefMut<'_, Sends>]) -> (Vec<(String, i32)>, Vec<Vec<usize>>) {
    let mut known: HashMap<(&str, i32), usize> = HashMap::new();
    let mut queues = Vec::new();
    let mut slots = Vec::with_capacity(turn.len());
    for sends in turn {
        let own = sends.queues.iter().map(|(topic, queue_id)| {
            *known.entry((topic, *queue_id)).or_insert_with(|| {
                queues.push((topic.clone(), *queue_id));
                queues.len() - 1
            })
        });
        slots.push(own.collect());
    }
    (queues, slots)
}

/// See `plain.queues_of_sends`.
#[pyfunction]
fn queues_of_sends(turn: &Bound<'_, PyAny>) -> PyResult<Vec<(String, i32)>> {
    Ok(queues_of(&turn_of(turn)?).0)
}

type Encoded<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
    Vec<(usize, usize, usize)>,
);

/// See `plain.encode_sends`.
#[pyfunction]
fn encode_sends<'py>(
    py: Python<'py>,
    turn: &Bound<'py, PyAny>,
    next_offsets: &Bound<'py, PyAny>,
    log_offset: &Bound<'py, PyAny>,
    store_ms: &Bound<'py, PyAny>,
    store_host: &Bound<'py, PyAny>,
    with_keys: u8,
) -> PyResult<Encoded<'py>> {
    let mut turn = turn_of(turn)?;
    let place = Place::of(next_offsets, log_offset, store_ms, store_host, with_keys)?;
    let (queues, slots) = queues_of(&turn);
    if place.queue_count() != queues.len() {
        return Err(refused("as many offsets as queues are needed"));
    }
    let (mut size, mut count) = (0, 0);
    let mut counts = vec![(0, 0, 0); queues.len()];
    for (sends, slots) in turn.iter().zip(&slots) {
        let data = sends.data.as_bytes(py);
        for one in &sends.ones {
            let bytes = sends.record_bytes(data, one, place.store_host.len());
            size += bytes;
            count += one.count;
            let of_queue = &mut counts[slots[one.queue]];
            of_queue.0 += one.count;
            of_queue.1 += bytes;
            of_queue.2 += 1;
        }
    }
    let mut rest = None;
    let records = PyBytes::new_with(py, size, |bytes| {
        let room = Room { bytes, used: 0 };
        let mut append = Append::new(place, room, count);
        for (units, (count, _, _)) in append.units.iter_mut().zip(&counts) {
            units.reserve(count * UNIT_BYTES);
        }
        for (sends, slots) in turn.iter_mut().zip(&slots) {
            add(py, &mut append, sends, slots)?;
        }
        let (room, units, keys) = append.into_parts();
        if room.used != size {
            return Err(refused("it is smaller than computed"));
        }
        rest = Some((units, keys));
        Ok(())
    })?;
    let (units, keys) = rest.unwrap_or_default();
    let units = PyList::new(py, units.iter().map(|each| PyBytes::new(py, each)))?;
    Ok((records, units, PyBytes::new(py, &keys), counts))
}

/// Appends all messages of a value, and notes where they are.
fn add<R: Records>(
    py: Python<'_>,
    append: &mut Append<'_, R>,
    sends: &mut Sends,
    slots: &[usize],
) -> PyResult<()> {
    let mut scratch = Vec::new();
    let mut offsets = Vec::with_capacity(sends.ones.iter().map(|one| one.count).sum());
    let mut places = Vec::with_capacity(sends.ones.len());
    {
        let sends: &Sends = sends;
        let data = sends.data.as_bytes(py);
        for one in &sends.ones {
            let topic = &sends.queues[one.queue].0;
            let start = offsets.len();
            let mut first = None;
            sends.each_message(data, one, &mut scratch, |message| {
                let (offset, _, queue_offset) = append.add(topic, message, slots[one.queue])?;
                first.get_or_insert(queue_offset);
                offsets.push(offset);
                Ok(())
            })?;
            places.push((first.unwrap_or(0), (start, offsets.len())));
        }
    }
    sends.log_offsets = offsets;
    for (one, (queue_offset, stored)) in sends.ones.iter_mut().zip(places) {
        one.queue_offset = queue_offset;
        one.stored = stored;
    }
    Ok(())
}

/// Writes answers.
struct Answers<'a> {
    out: Vec<u8>,
    ids: Vec<u8>,
    store_host: &'a [u8],
    region: &'a str,
    region_json: Vec<u8>,
    trace: &'static [u8],
    version: i64,
}

impl Answers<'_> {
    fn write(
        &mut self,
        (form, code, opaque): (u8, i32, i32),
        (queue_id, queue_offset): (i32, i64),
        log_offsets: &[i64],
        (key, handle): (&str, &str),
    ) -> PyResult<()> {
        self.ids.clear();
        for log_offset in log_offsets {
            if !self.ids.is_empty() {
                self.ids.push(b',');
            }
            write_hex(&mut self.ids, self.store_host);
            write_hex(&mut self.ids, &log_offset.to_be_bytes());
        }
        let (queue_id, queue_offset) = (queue_id.to_string(), queue_offset.to_string());
        let out = &mut self.out;
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        if form == ROCKETMQ {
            let code = i16::try_from(code)
                .map_err(|_| PyValueError::new_err("the code does not fit 16 bits"))?;
            out.extend_from_slice(&code.to_be_bytes());
            out.push(PYTHON);
            out.extend_from_slice(&(self.version as i16).to_be_bytes());
            out.extend_from_slice(&opaque.to_be_bytes());
            out.extend_from_slice(&RESPONSE.to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            let fields_start = out.len();
            write_entry(out, b"msgId", &self.ids);
            write_entry(out, b"queueId", queue_id.as_bytes());
            write_entry(out, b"queueOffset", queue_offset.as_bytes());
            write_entry(out, b"transactionId", key.as_bytes());
            write_entry(out, b"TRACE_ON", self.trace);
            write_entry(out, b"MSG_REGION", self.region.as_bytes());
            write_entry(out, b"recallHandle", handle.as_bytes());
            let length = (out.len() - fields_start) as u32;
            out[fields_start - 4..fields_start].copy_from_slice(&length.to_be_bytes());
        } else {
            out.extend_from_slice(b"{\"code\":");
            out.extend_from_slice(code.to_string().as_bytes());
            out.extend_from_slice(b",\"extFields\":{\"queueId\":\"");
            out.extend_from_slice(queue_id.as_bytes());
            out.extend_from_slice(b"\",\"transactionId\":\"");
            write_text(out, key);
            out.extend_from_slice(b"\",\"msgId\":\"");
            out.extend_from_slice(&self.ids);
            out.extend_from_slice(b"\",\"TRACE_ON\":\"");
            out.extend_from_slice(self.trace);
            out.extend_from_slice(b"\",\"MSG_REGION\":\"");
            out.extend_from_slice(&self.region_json);
            out.extend_from_slice(b"\",\"queueOffset\":\"");
            out.extend_from_slice(queue_offset.as_bytes());
            if !handle.is_empty() {
                out.extend_from_slice(b"\",\"recallHandle\":\"");
                write_text(out, handle);
            }
            out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
            out.extend_from_slice(opaque.to_string().as_bytes());
            out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
            out.extend_from_slice(self.version.to_string().as_bytes());
            out.push(b'}');
        }
        let size = (out.len() - start - 8) as u32;
        out[start..start + 4].copy_from_slice(&(size + 4).to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&(u32::from(form) << 24 | size).to_be_bytes());
        Ok(())
    }
}

/// See `plain.encode_send_answers`.
#[pyfunction]
fn encode_send_answers<'py>(
    py: Python<'py>,
    turn: &Bound<'py, PyAny>,
    code: i32,
    waiting: Option<bool>,
    store_host: &[u8],
    region: &str,
    traced: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Answers {
        out: Vec::with_capacity(256),
        ids: Vec::new(),
        store_host,
        region,
        region_json: Vec::new(),
        trace: if traced { b"true" } else { b"false" },
        version: version(py)?,
    };
    write_text(&mut out.region_json, region);
    for sends in turn_of(turn)? {
        let data = sends.data.as_bytes(py);
        for one in &sends.ones {
            if one.flag & ONEWAY == 0 && waiting.map_or(true, |waiting| waiting == one.waits) {
                sends.answer(&mut out, data, one, code)?;
            }
        }
    }
    Ok(PyBytes::new(py, &out.out))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Sends>()?;
    module.add_function(wrap_pyfunction!(sends_of, module)?)?;
    module.add_function(wrap_pyfunction!(queues_of_sends, module)?)?;
    module.add_function(wrap_pyfunction!(encode_sends, module)?)?;
    module.add_function(wrap_pyfunction!(encode_send_answers, module)?)
}
