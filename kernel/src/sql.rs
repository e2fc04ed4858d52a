//! SQL92 programs over raw property texts; the twin of `plain/sql.py`. The format: `orbitmq/kernel/sql_program.py`.
//!
//! Texts are compared as bytes. That equals the comparison of decoded texts, where bytes that are not UTF-8 become
//! U+FFFD, unless a literal contains U+FFFD itself; then values are decoded first.

use std::borrow::Cow;
use std::cmp::Ordering;

use memchr::{memchr, memchr2, memchr_iter, memmem};

use crate::java_numbers::{
    compare_doubles, read_double, read_integer, Unreadable, INT_MAX, LONG_MAX,
};

const DEPTH_MAX: usize = 256;
const LINEAR_NAMES_MAX: usize = 8;

struct Literal {
    bytes: Box<[u8]>,
    has_replacement: bool,
}

impl Literal {
    fn new(bytes: &[u8]) -> Self {
        Literal {
            bytes: bytes.into(),
            has_replacement: memmem::find(bytes, "\u{fffd}".as_bytes()).is_some(),
        }
    }
}

#[derive(Clone, Copy)]
enum Place {
    Contains,
    Starts,
    Ends,
}

/// Boxed, because it must be aligned to 32 bytes: a Python object, in which the root of a program would hold it,
/// is aligned to 16.
type Finder = Box<memmem::Finder<'static>>;

enum Node {
    /// By its number in `Program::names`.
    Property(usize),
    Null,
    Bool(bool),
    Int(i64),
    Long(i64),
    Double(f64),
    Text(Literal),
    Void(Box<Node>),
    Equal(Box<Node>, Box<Node>),
    /// Whether less, equal and greater satisfy it.
    Order([bool; 3], Box<Node>, Box<Node>),
    Not(Box<Node>),
    /// The value that decides: false for AND, true for OR.
    Chain(bool, Vec<Node>),
    In {
        name: usize,
        texts: Vec<Box<[u8]>>,
        has_replacement: bool,
        negated: bool,
    },
    TextTest {
        place: Place,
        negated: bool,
        operand: Box<Node>,
        part: Literal,
        finder: Finder,
    },
    Cast(usize),
}

impl Node {
    fn is_condition(&self) -> bool {
        !matches!(
            self,
            Node::Property(_)
                | Node::Int(_)
                | Node::Long(_)
                | Node::Double(_)
                | Node::Text(_)
                | Node::Void(_)
        )
    }
}

enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Long(i64),
    Double(f64),
    /// A text, and whether it is known to hold neither broken UTF-8 nor U+FFFD.
    Text(&'a [u8], bool),
}

/// An expression, ready to be evaluated.
pub struct Program {
    root: Node,
    names: Vec<Box<[u8]>>,
    /// Numbers of the names, sorted by name, when there are too many to be compared one by one.
    sorted: Vec<usize>,
    pub node_count: usize,
}

struct Reader<'a> {
    rest: &'a [u8],
    names: Vec<Box<[u8]>>,
    node_count: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, size: usize) -> Result<&'a [u8], String> {
        if size > self.rest.len() {
            return Err("an SQL program ends too early".into());
        }
        let (bytes, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<usize, String> {
        let bytes = self.bytes(4)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn long(&mut self) -> Result<u64, String> {
        let bytes = self.bytes(8)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let size = self.number()?;
        let bytes = self.bytes(size)?;
        match std::str::from_utf8(bytes) {
            Ok(_) => Ok(bytes),
            Err(_) => Err("an SQL program holds a text that is not UTF-8".into()),
        }
    }

    fn name(&mut self) -> Result<usize, String> {
        let size = self.number()?;
        let name = self.bytes(size)?;
        if name.is_empty() || memchr2(1, 2, name).is_some() {
            return Err("an SQL program names a property that cannot exist".into());
        }
        if let Some(index) = self.names.iter().position(|known| **known == *name) {
            return Ok(index);
        }
        self.names.push(name.into());
        Ok(self.names.len() - 1)
    }

    fn condition(&mut self, depth: usize) -> Result<Node, String> {
        let node = self.node(depth)?;
        if node.is_condition() {
            Ok(node)
        } else {
            Err("an SQL program has a value in place of a condition".into())
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, String> {
        self.node_count += 1;
        if depth > DEPTH_MAX {
            return Err(format!(
                "an SQL program is nested more than {DEPTH_MAX} deep"
            ));
        }
        let code = self.bytes(1)?[0];
        let deeper = depth + 1;
        Ok(match code {
            1 => Node::Property(self.name()?),
            2 => Node::Null,
            3 => Node::Bool(true),
            4 => Node::Bool(false),
            5 => Node::Int(self.long()? as i64),
            6 => Node::Long(self.long()? as i64),
            7 => Node::Double(f64::from_bits(self.long()?)),
            8 => Node::Text(Literal::new(self.text()?)),
            9 => Node::Void(Box::new(self.condition(deeper)?)),
            10 => Node::Equal(Box::new(self.node(deeper)?), Box::new(self.node(deeper)?)),
            11..=14 => {
                let holds = [code <= 12, code == 12 || code == 14, code >= 13];
                Node::Order(
                    holds,
                    Box::new(self.node(deeper)?),
                    Box::new(self.node(deeper)?),
                )
            }
            15 => Node::Not(Box::new(self.condition(deeper)?)),
            16 | 17 => {
                let count = self.number()?;
                let mut terms = Vec::new();
                for _ in 0..count {
                    terms.push(self.condition(deeper)?);
                }
                Node::Chain(code == 17, terms)
            }
            18 | 19 => {
                let name = self.name()?;
                let count = self.number()?;
                let mut texts: Vec<Box<[u8]>> = Vec::new();
                let mut has_replacement = false;
                for _ in 0..count {
                    let literal = Literal::new(self.text()?);
                    has_replacement |= literal.has_replacement;
                    texts.push(literal.bytes);
                }
                texts.sort_unstable();
                Node::In {
                    name,
                    texts,
                    has_replacement,
                    negated: code == 19,
                }
            }
            20..=25 => {
                let operand = Box::new(self.node(deeper)?);
                let part = Literal::new(self.text()?);
                let finder = Box::new(memmem::Finder::new(&part.bytes).into_owned());
                let place = match code {
                    20 | 21 => Place::Contains,
                    22 | 23 => Place::Starts,
                    _ => Place::Ends,
                };
                Node::TextTest {
                    place,
                    negated: code % 2 == 1,
                    operand,
                    part,
                    finder,
                }
            }
            26 => Node::Cast(self.name()?),
            _ => return Err(format!("an SQL program holds the unknown operation {code}")),
        })
    }
}

/// Positions of the values of a program's properties in a property text, by the number of the name.
#[derive(Default)]
pub struct Scratch {
    values: Vec<Option<(usize, usize)>>,
}

struct Properties<'a> {
    text: &'a [u8],
    values: &'a [Option<(usize, usize)>],
}

impl<'a> Properties<'a> {
    fn get(&self, name: usize) -> Option<&'a [u8]> {
        self.values[name].map(|(start, end)| &self.text[start..end])
    }
}

fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    match String::from_utf8_lossy(text) {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

impl Program {
    /// Fails with the reason for a program that cannot be read.
    pub fn parse(program: &[u8]) -> Result<Self, String> {
        let mut reader = Reader {
            rest: program,
            names: Vec::new(),
            node_count: 0,
        };
        let root = reader.condition(1)?;
        if !reader.rest.is_empty() {
            return Err("an SQL program has data after its end".into());
        }
        let names = reader.names;
        let mut sorted: Vec<usize> = Vec::new();
        if names.len() > LINEAR_NAMES_MAX {
            sorted = (0..names.len()).collect();
            sorted.sort_unstable_by(|one, other| names[*one].cmp(&names[*other]));
        }
        Ok(Program {
            root,
            names,
            sorted,
            node_count: reader.node_count,
        })
    }

    /// Whether a message with that property text is selected.
    pub fn selects(&self, text: &[u8], scratch: &mut Scratch) -> bool {
        scratch.values.clear();
        scratch.values.resize(self.names.len(), None);
        let mut start = 0;
        for end in memchr_iter(2, text).chain([text.len()]) {
            self.note(text, start, end, &mut scratch.values);
            start = end + 1;
        }
        evaluate(
            &self.root,
            &Properties {
                text,
                values: &scratch.values,
            },
        ) == Ok(Some(true))
    }

    /// Take over one `name 0x01 value` if it is a property of the program; an empty name or value does not exist.
    fn note(&self, text: &[u8], start: usize, end: usize, values: &mut [Option<(usize, usize)>]) {
        let pair = &text[start..end];
        if self.sorted.is_empty() {
            for (index, name) in self.names.iter().enumerate() {
                let size = name.len();
                if pair.len() > size + 1 && pair[size] == 1 && pair[..size] == **name {
                    values[index] = Some((start + size + 1, end));
                    return;
                }
            }
            return;
        }
        if let Some(size) = memchr(1, pair).filter(|size| size + 1 < pair.len()) {
            if let Ok(place) = self
                .sorted
                .binary_search_by(|index| (*self.names[*index]).cmp(&pair[..size]))
            {
                values[self.sorted[place]] = Some((start + size + 1, end));
            }
        }
    }
}

fn evaluate(node: &Node, properties: &Properties<'_>) -> Result<Option<bool>, Unreadable> {
    match node {
        Node::Chain(deciding, terms) => {
            let mut unknown = false;
            for term in terms {
                match evaluate(term, properties)? {
                    Some(value) if value == *deciding => return Ok(Some(value)),
                    Some(_) => {}
                    None => unknown = true,
                }
            }
            Ok(if unknown { None } else { Some(!deciding) })
        }
        Node::Not(operand) => Ok(evaluate(operand, properties)?.map(|value| !value)),
        Node::Equal(left, right) => {
            let left = value_of(left, properties)?;
            let right = value_of(right, properties)?;
            match (left, right) {
                (Value::Null, Value::Null) => Ok(Some(true)),
                (Value::Null, _) => Ok(None),
                (_, Value::Null) => Ok(Some(false)),
                (left, right) => Ok(Some(compare(left, right)? == Ordering::Equal)),
            }
        }
        Node::Order(holds, left, right) => {
            let left = value_of(left, properties)?;
            if matches!(left, Value::Null) {
                return Ok(None);
            }
            let sign = match (left, value_of(right, properties)?) {
                (_, Value::Null) => return Ok(None),
                // Texts have no order; two properties are compared as fractions.
                (Value::Text(left, _), Value::Text(right, _)) => {
                    compare_doubles(read_double(left)?, read_double(right)?)
                }
                (left, right) => compare(left, right)?,
            };
            Ok(Some(match sign {
                Ordering::Less => holds[0],
                Ordering::Equal => holds[1],
                Ordering::Greater => holds[2],
            }))
        }
        Node::In {
            name,
            texts,
            has_replacement,
            negated,
        } => Ok(properties.get(*name).map(|value| {
            let value = if *has_replacement {
                decoded(value)
            } else {
                Cow::Borrowed(value)
            };
            texts.binary_search_by(|text| (**text).cmp(&value)).is_ok() != *negated
        })),
        Node::TextTest {
            place,
            negated,
            operand,
            part,
            finder,
        } => {
            let value = match value_of(operand, properties)? {
                Value::Text(value, _) if !part.bytes.is_empty() => value,
                _ => return Ok(Some(false)),
            };
            let value = if part.has_replacement {
                decoded(value)
            } else {
                Cow::Borrowed(value)
            };
            let holds = match place {
                Place::Contains => finder.find(&value).is_some(),
                Place::Starts => value.starts_with(&part.bytes),
                Place::Ends => value.ends_with(&part.bytes),
            };
            Ok(Some(holds != *negated))
        }
        Node::Cast(name) => Ok(properties.get(*name).map(|_| false)),
        Node::Bool(value) => Ok(Some(*value)),
        _ => Ok(None), // NULL; the reader lets no value stand here
    }
}

fn value_of<'a>(node: &'a Node, properties: &Properties<'a>) -> Result<Value<'a>, Unreadable> {
    Ok(match node {
        Node::Property(name) => properties
            .get(*name)
            .map_or(Value::Null, |text| Value::Text(text, false)),
        Node::Int(value) => Value::Int(*value),
        Node::Long(value) => Value::Long(*value),
        Node::Double(value) => Value::Double(*value),
        Node::Text(literal) => Value::Text(&literal.bytes, !literal.has_replacement),
        Node::Void(operand) => {
            evaluate(operand, properties)?;
            Value::Null
        }
        _ => evaluate(node, properties)?.map_or(Value::Null, Value::Bool),
    })
}

fn same_text(left: &[u8], right: &[u8], as_bytes: bool) -> Ordering {
    if left == right || (!as_bytes && decoded(left) == decoded(right)) {
        Ordering::Equal
    } else {
        Ordering::Less
    }
}

/// Also -1 for kinds that have no common form; neither side is null. Two texts are equal or not.
fn compare(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Unreadable> {
    use Value::{Bool, Double, Int, Long, Null, Text};
    Ok(match (left, right) {
        (Text(left, left_plain), Text(right, right_plain)) => {
            same_text(left, right, left_plain || right_plain)
        }
        (Bool(left), Bool(right)) => left.cmp(&right),
        (Bool(_), Text(..)) => return Err(Unreadable), // Apache casts the wrong side here, which throws
        (Text(left, _), Bool(right)) => left.eq_ignore_ascii_case(b"true").cmp(&right),
        (Bool(_) | Null, _) | (_, Bool(_) | Null) => Ordering::Less,
        (Double(left), right) => compare_doubles(left, double(&right)?),
        (left, Double(right)) => compare_doubles(double(&left)?, right),
        (Text(left, _), Int(right)) => read_integer(left, INT_MAX)?.cmp(&right),
        (Text(left, _), Long(right)) => read_integer(left, LONG_MAX)?.cmp(&right),
        (Int(left), Text(right, _)) => left.cmp(&read_integer(right, INT_MAX)?),
        (Long(left), Text(right, _)) => left.cmp(&read_integer(right, LONG_MAX)?),
        (Int(left) | Long(left), Int(right) | Long(right)) => left.cmp(&right),
    })
}

fn double(value: &Value<'_>) -> Result<f64, Unreadable> {
    match value {
        Value::Text(text, _) => read_double(text),
        Value::Int(value) | Value::Long(value) => Ok(*value as f64),
        Value::Double(value) => Ok(*value),
        Value::Bool(_) | Value::Null => Err(Unreadable),
    }
}
