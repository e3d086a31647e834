//! Several addresses, of which the first that answers is used.

use std::fmt;
use std::str::FromStr;

use super::address::{Address, AddressError};

/// The addresses of servers, in the order in which they are tried. There is at least one.
///
/// As text they have commas between them. A comma in the path of a Unix socket is written
/// twice there, as nothing else tells it apart: `unix:/run/a,,b` is one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Addresses(Vec<Address>);

impl Addresses {
    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// One of them; after the last comes the first again.
    #[must_use]
    pub fn get(&self, number: usize) -> &Address {
        &self.0[number % self.0.len()]
    }

    /// These, and behind them those of others that are not among them.
    #[must_use]
    pub fn and(mut self, others: &Addresses) -> Addresses {
        let new = |address: &&Address| !self.0.contains(address);
        let new: Vec<Address> = others.iter().filter(new).cloned().collect();
        self.0.extend(new);
        self
    }

    /// All, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.0.iter()
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Addresses {
        Addresses(vec![address])
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Addresses, AddressError> {
        let read = |one: String| match one.parse() {
            Err(AddressError::Unreadable(one)) => Err(AddressError::InList(one, text.to_owned())),
            other => other,
        };
        let mut parts = parts(text);
        match parts.len() {
            1 => parts.remove(0).parse().map(Address::into),
            _ => parts
                .into_iter()
                .map(read)
                .collect::<Result<_, _>>()
                .map(Addresses),
        }
    }
}

/// What is between single commas, with two commas as one.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_end = letter == ',' && letters.next_if_eq(&',').is_none();
        match parts.last_mut() {
            Some(part) if !is_end => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, address) in self.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", address.to_string().replace(',', ",,"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_in_their_order() {
        let list: Addresses = "[::1]:80,unix:/run/a,,b,127.0.0.1:7450".parse().unwrap();
        let all: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(all, ["[::1]:80", "unix:/run/a,b", "127.0.0.1:7450"]);
        assert_eq!(list.get(4), list.get(1));
        let last: Addresses = "127.0.0.1:7450".parse().unwrap();
        assert_eq!(
            last.and(&list).to_string(),
            "127.0.0.1:7450,[::1]:80,unix:/run/a,,b"
        );
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_remedy() {
        for text in ["127.0.0.1:80,", ",unix:/a", "unix:/run/a,b", "unix:/a,::1"] {
            let error = text.parse::<Addresses>().unwrap_err().to_string();
            assert!(
                error.contains("comma in a PATH is written twice"),
                "{error}"
            );
        }
        let alone = "nowhere".parse::<Addresses>().unwrap_err().to_string();
        assert!(alone.contains("write HOST:PORT"), "{alone}");
        assert!(!alone.contains("comma"), "{alone}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(paths in prop::collection::vec("[a-z,:/]{1,9}", 1..5)) {
            let all = paths.iter().map(|path| Address::Unix(path.into())).collect();
            let all = Addresses(all);
            prop_assert_eq!(all.to_string().parse(), Ok(all));
        }
    }
}
