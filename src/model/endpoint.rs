//! `host:port`, for names, IPv4 and IPv6.

use std::fmt;

/// Where a rank or a store listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint on `host`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Reads `host:port` or `[v6]:port`; `None` when it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Self::new(host, port))
    }

    /// Endpoints joined by commas, as Paddle's variables hold them.
    pub fn join(list: &[Endpoint]) -> String {
        list.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

/// `count` ports from `first` on, or why there are not so many.
pub fn consecutive(first: u16, count: usize) -> Result<Vec<u16>, String> {
    match usize::from(first).checked_add(count) {
        Some(end) if end <= 65_536 => Ok((0..count).map(|i| first + i as u16).collect()),
        _ => Err(format!("leaves no room for {count} ports below 65536")),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_reads_what_display_writes(host in "[a-z0-9.]{1,12}|[0-9a-f]{1,4}::[0-9a-f]{1,4}", port: u16) {
            let endpoint = Endpoint::new(host, port);
            prop_assert_eq!(Endpoint::parse(&endpoint.to_string()), Some(endpoint));
        }
    }

    #[test]
    fn ports_end_at_the_last_one() {
        assert_eq!(consecutive(65_534, 2), Ok(vec![65_534, 65_535]));
        assert_eq!(consecutive(7, 0), Ok(vec![]));
        assert!(consecutive(65_535, 2).is_err());
        assert!(consecutive(1, usize::MAX).is_err());
    }

    #[test]
    fn nonsense_is_no_endpoint() {
        for text in ["", "host", ":80", "host:", "host:70000", "host:-1"] {
            assert_eq!(Endpoint::parse(text), None, "{text}");
        }
    }
}
