//! Property text: pairs of name 0x01 value, each ended by 0x02 (`find_property` in `plain/records.py`).

use crate::hashes::java_hash;

pub struct Names {
    pub unique_key: Option<(usize, usize)>,
    pub keys: Option<(usize, usize)>,
    pub tags: Option<(usize, usize)>,
}

/// The value of the last pair of that name that is not empty.
pub fn find<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties
        .split(|&byte| byte == 2)
        .rfind(|pair| {
            pair.len() > name.len() + 1 && pair.starts_with(name) && pair[name.len()] == 1
        })
        .map(|pair| &pair[name.len() + 1..])
}

/// The three names the store looks for, in one pass over the pairs.
pub fn find_names(properties: &[u8]) -> Names {
    let mut names = Names {
        unique_key: None,
        keys: None,
        tags: None,
    };
    let mut start = 0;
    while start < properties.len() {
        let rest = &properties[start..];
        let end = start + memchr::memchr(2, rest).unwrap_or(rest.len());
        let pair = &properties[start..end];
        if pair.len() > 5 && pair[4] == 1 {
            if pair.starts_with(b"TAGS") {
                names.tags = Some((start + 5, end));
            } else if pair.starts_with(b"KEYS") {
                names.keys = Some((start + 5, end));
            }
        } else if pair.len() > 9 && pair.starts_with(b"UNIQ_KEY\x01") {
            names.unique_key = Some((start + 9, end));
        }
        start = end + 1;
    }
    names
}

/// What a queue unit holds for a message: the hash of its tag, 0 without one.
pub fn tag_code(properties: &[u8], names: &Names) -> i64 {
    names.tags.map_or(0, |(start, end)| {
        i64::from(java_hash(&properties[start..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_pair_that_is_not_empty_counts() {
        assert_eq!(
            find(b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS"),
            Some(&b"b"[..])
        );
        assert_eq!(find(b"TAGS\x01a\x02TAGS\x01\x02", b"TAGS"), Some(&b"a"[..]));
        assert_eq!(find(b"XTAGS\x01a\x02", b"TAGS"), None);
        assert_eq!(find(b"a\x01TAGS\x01b\x02", b"TAGS"), None);
        assert_eq!(find(b"", b"TAGS"), None);
        assert_eq!(find(b"TAGS", b"TAGS"), None);
    }
}
