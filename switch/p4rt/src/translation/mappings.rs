//! Parses `@p4runtime_translation_mappings({ {"name", value}, ... })` as p4c writes it into the
//! P4Info: strings and the values that the program gives them.

use crate::error::{Result, invalid};

/// The annotation's name.
const NAME: &str = "@p4runtime_translation_mappings";

/// The mappings among a type's annotations.
///
/// # Errors
/// INVALID_ARGUMENT for an annotation that is not of this form.
pub fn parse(annotations: &[String], type_name: &str) -> Result<Vec<(String, u64)>> {
    let of = |a: &String| a.strip_prefix(NAME).map(str::to_owned);
    let mut all = Vec::new();
    for text in annotations.iter().filter_map(of) {
        let mut parser = Parser { rest: &text };
        let parsed = parser.list().filter(|_| parser.rest.trim().is_empty());
        all.extend(parsed.ok_or_else(|| {
            let at: String = parser.rest.chars().take(20).collect();
            invalid(format!("type {type_name}: {NAME} needs ({{ {{\"string\", number}}, ... }}), not {at:?}"))
        })?);
    }
    Ok(all)
}

struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn take(&mut self, token: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(token)?;
        Some(())
    }

    fn list(&mut self) -> Option<Vec<(String, u64)>> {
        self.take('(')?;
        self.take('{')?;
        let mut all = Vec::new();
        while self.take('}').is_none() {
            self.take('{')?;
            let name = self.string()?;
            self.take(',')?;
            let value = self.number()?;
            // p4c keeps a comma after the last element.
            let _ = self.take(',');
            self.take('}')?;
            all.push((name, value));
            if self.take(',').is_none() {
                self.take('}')?;
                break;
            }
        }
        self.take(')')?;
        Some(all)
    }

    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        loop {
            match chars.next()? {
                (at, '"') => {
                    self.rest = &self.rest[at + 1..];
                    return Some(out);
                }
                (_, '\\') => out.push(chars.next()?.1),
                (_, other) => out.push(other),
            }
        }
    }

    /// A decimal or hexadecimal number, with a width in front of it or without (`9w5`).
    fn number(&mut self) -> Option<u64> {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let digits = match word.split_once('w') {
            Some((width, digits)) if width.bytes().all(|b| b.is_ascii_digit()) => digits,
            _ => word,
        };
        self.rest = rest;
        match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<(String, u64)>> {
        parse(&["@noWarn".to_owned(), format!("{NAME}{text}")], "t")
    }

    #[test]
    fn mappings_as_p4c_writes_them() {
        let all = parsed(r#"({ { "" , 0 } , { "x\"y" , 0x1f } , {"CPU", 9w510} , })"#).unwrap();
        assert_eq!(all, [(String::new(), 0), ("x\"y".to_owned(), 31), ("CPU".to_owned(), 510)]);
        assert_eq!(parsed("({ })").unwrap(), []);
    }

    #[test]
    fn other_forms_are_refused() {
        for wrong in ["", "()", "({ {\"a\" } })", "({ {1, 2} })", "({ {\"a\", -1} })", "({ }) x", "({{\"a"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[({ \"\\\\,xw0-9a}})é]{0,40}") {
            let _ = parsed(&text);
        }

        #[test]
        fn written_mappings_are_parsed(all in proptest::collection::vec(("[^\"\\\\]{0,8}", any::<u64>()), 0..5)) {
            let list: Vec<String> = all.iter().map(|(n, v)| format!("{{ \"{n}\" , {v} }}")).collect();
            prop_assert_eq!(parsed(&format!("({{ {} }})", list.join(" , "))).unwrap(), all);
        }
    }
}
