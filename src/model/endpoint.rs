//! Network endpoint `host:port`, for names, IPv4 and IPv6.

use core::net::IpAddr;
use std::fmt;

/// Host and port on which a rank or a store listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint on `host`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Parses `host:port` or `[v6]:port`; `None` if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Self::new(host, port))
    }

    /// Whether it is 0.0.0.0 or ::, which name no machine.
    pub fn is_unspecified(&self) -> bool {
        self.host.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
    }

    /// Comma-separated endpoints, as in Paddle's variables.
    pub fn join(list: &[Endpoint]) -> String {
        list.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The range of ports extends beyond 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leaves no room for {count} ports below 65536")]
pub struct PortRangeError {
    count: usize,
}

/// `count` ports from `first` on.
pub fn consecutive_ports(first: u16, count: usize) -> Result<Vec<u16>, PortRangeError> {
    match usize::from(first).checked_add(count) {
        Some(end) if end <= 65_536 => Ok((0..count).map(|i| first + i as u16).collect()),
        _ => Err(PortRangeError { count }),
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
        assert_eq!(consecutive_ports(65_534, 2), Ok(vec![65_534, 65_535]));
        assert_eq!(consecutive_ports(7, 0), Ok(vec![]));
        assert!(consecutive_ports(65_535, 2).is_err());
        assert!(consecutive_ports(1, usize::MAX).is_err());
    }

    #[test]
    fn invalid_text_is_no_endpoint() {
        for text in ["", "host", ":80", "host:", "host:70000", "host:-1"] {
            assert_eq!(Endpoint::parse(text), None, "{text}");
        }
    }
}
