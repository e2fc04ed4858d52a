//! Just enough JSON for headers: flat objects of texts and numbers. What it does not read is left to the plain kernel.

use std::borrow::Cow;

/// A value of a flat object.
pub enum Value<'a> {
    Text(Cow<'a, str>),
    Int(i64),
    Null,
    /// A flat object, as it stands in the text.
    Object(&'a str),
}

/// What ends the plain part of a text: its quote, an escape, a byte that may not stand in it.
const ENDS_TEXT: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

/// Where the plain part of a text ends; None when it does not.
pub fn text_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| ENDS_TEXT[usize::from(byte)])
}

pub struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a str) -> Self {
        Scan {
            text,
            bytes: text.as_bytes(),
            at: 0,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(
            self.peek(),
            Some(b' ') | Some(b'\n') | Some(b'\r') | Some(b'\t')
        ) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Some(());
        }
        None
    }

    /// Calls `each` for every pair of the object that is the whole text. None: something here is not flat JSON.
    pub fn object(
        text: &'a str,
        mut each: impl FnMut(Cow<'a, str>, Value<'a>) -> Option<()>,
    ) -> Option<()> {
        let mut scan = Scan::new(text);
        scan.space();
        scan.pairs(true, &mut each)?;
        scan.space();
        if scan.at == scan.bytes.len() {
            Some(())
        } else {
            None
        }
    }

    fn pairs(
        &mut self,
        nested: bool,
        each: &mut dyn FnMut(Cow<'a, str>, Value<'a>) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        self.space();
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.take(b':')?;
            self.space();
            let value = self.value(nested)?;
            each(key, value)?;
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    fn value(&mut self, nested: bool) -> Option<Value<'a>> {
        match self.peek()? {
            b'"' => self.string().map(Value::Text),
            b'n' => {
                if self.bytes[self.at..].starts_with(b"null") {
                    self.at += 4;
                    return Some(Value::Null);
                }
                None
            }
            b'{' if nested => {
                let start = self.at;
                self.pairs(false, &mut |_, _| Some(()))?;
                Some(Value::Object(&self.text[start..self.at]))
            }
            b'-' | b'0'..=b'9' => self.int().map(Value::Int),
            _ => None,
        }
    }

    fn int(&mut self) -> Option<i64> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let digits = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        let count = self.at - digits;
        if count == 0 || count > 18 || (count > 1 && self.bytes[digits] == b'0') {
            return None;
        }
        if matches!(self.peek(), Some(b'.') | Some(b'e') | Some(b'E')) {
            return None;
        }
        self.text[start..self.at].parse().ok()
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        self.at += text_end(&self.bytes[start..])?;
        match self.bytes[self.at] {
            b'"' => {
                let found = &self.text[start..self.at];
                self.at += 1;
                return Some(Cow::Borrowed(found));
            }
            b'\\' => {}
            _ => return None,
        }
        let mut text = String::with_capacity(self.at - start + 64);
        text.push_str(&self.text[start..self.at]);
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(Cow::Owned(text));
                }
                b'\\' => {
                    self.at += 1;
                    text.push(self.escaped()?);
                }
                0..=0x1f => return None,
                _ => {
                    let run = self.at;
                    while matches!(self.peek(), Some(byte) if byte != b'"' && byte != b'\\' && byte > 0x1f)
                    {
                        self.at += 1;
                    }
                    text.push_str(&self.text[run..self.at]);
                }
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                if (0xd800..0xdc00).contains(&first) {
                    self.take(b'\\')?;
                    self.take(b'u')?;
                    let second = self.hex()?;
                    if !(0xdc00..0xe000).contains(&second) {
                        return None;
                    }
                    return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
                }
                return char::from_u32(first);
            }
            _ => return None,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        let mut value = 0;
        for &digit in digits {
            value = value << 4 | (digit as char).to_digit(16)?;
        }
        self.at += 4;
        Some(value)
    }
}

/// Appends `text` as the inside of a JSON string.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            0..=0x1f => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[(byte >> 4) as usize]);
                out.push(HEX[(byte & 15) as usize]);
            }
            _ => out.push(byte),
        }
    }
}
