//! The part of HTTP/1.1 that the master and its clients use: parsing and formatting of requests and responses. Pure.
//!
//! No memory is allocated for a declared length before its bytes have arrived.

/// The longest head, bytes.
pub const MAX_HEAD: usize = 16 * 1024;
/// The longest body of a request, bytes.
pub const MAX_BODY: usize = 1024 * 1024;
/// The longest body of a response, bytes: more than all keys that a master keeps.
pub const MAX_RESPONSE: usize = 512 * 1024 * 1024;

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpError {
    /// The bytes are not HTTP.
    #[error("not HTTP")]
    Malformed,
    /// The head is longer than [`MAX_HEAD`].
    #[error("the HTTP head is longer than {MAX_HEAD} bytes")]
    HeadTooLong,
    /// The body is too long.
    #[error("the HTTP body is too long")]
    BodyTooLong,
    /// The body has a transfer encoding instead of a length.
    #[error("the HTTP body has a transfer encoding, which is not supported")]
    TransferEncoding,
}

impl HttpError {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::HeadTooLong => 431,
            Self::BodyTooLong => 413,
            Self::TransferEncoding => 501,
        }
    }
}

/// A request or a response.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HttpMessage {
    /// The first line: method, path and version; or version, status and reason.
    pub first: [String; 3],
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpMessage {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.header(name).is_some_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case(token)))
    }

    /// Whether the client of this request wants to keep the connection.
    pub fn keeps_alive(&self) -> bool {
        match self.first[2].as_str() {
            "HTTP/1.0" => self.has_token("connection", "keep-alive"),
            _ => !self.has_token("connection", "close"),
        }
    }

    /// Whether this request upgrades to a protocol.
    pub fn upgrades_to(&self, protocol: &str) -> bool {
        self.has_token("connection", "upgrade") && self.has_token("upgrade", protocol)
    }

    /// The status of this response.
    pub fn status(&self) -> Option<u16> {
        self.first[1].parse().ok()
    }
}

/// Parses the requests, or the responses, of one connection.
#[derive(Debug)]
pub struct HttpParser {
    bytes: Vec<u8>,
    /// Bytes that contain no end of a head.
    searched: usize,
    head: Option<(HttpMessage, usize)>,
    max_body: usize,
    is_request: bool,
}

impl HttpParser {
    /// Parses requests.
    pub fn of_requests() -> Self {
        Self { bytes: Vec::new(), searched: 0, head: None, max_body: MAX_BODY, is_request: true }
    }

    /// Parses responses.
    pub fn of_responses() -> Self {
        Self { max_body: MAX_RESPONSE, is_request: false, ..Self::of_requests() }
    }

    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory that it holds, in bytes, roughly.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + if self.head.is_some() { MAX_HEAD } else { 0 }
    }

    /// Whether no part of a message is held.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.head.is_none()
    }

    /// The bytes that followed the last message.
    pub fn into_rest(self) -> Vec<u8> {
        self.bytes
    }

    /// The next message; `None` until it has arrived completely. After an error the parser cannot be used any more.
    pub fn next_message(&mut self) -> Result<Option<HttpMessage>, HttpError> {
        if self.head.is_none() {
            let from = self.searched.saturating_sub(3);
            let end = self.bytes[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at);
            self.searched = self.bytes.len();
            let Some(end) = end else {
                return if self.bytes.len() > MAX_HEAD { Err(HttpError::HeadTooLong) } else { Ok(None) };
            };
            if end > MAX_HEAD {
                return Err(HttpError::HeadTooLong);
            }
            let message = parse_head(&self.bytes[..end], self.is_request)?;
            let length = content_length(&message)?;
            if length > self.max_body {
                return Err(HttpError::BodyTooLong);
            }
            self.bytes.drain(..end + 4);
            self.head = Some((message, length));
        }
        if self.head.as_ref().is_none_or(|(_, length)| self.bytes.len() < *length) {
            return Ok(None);
        }
        let Some((mut message, length)) = self.head.take() else { return Ok(None) };
        message.body = self.bytes.drain(..length).collect();
        self.searched = 0;
        // A large body leaves a large buffer.
        self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        Ok(Some(message))
    }
}

fn parse_head(bytes: &[u8], is_request: bool) -> Result<HttpMessage, HttpError> {
    let text = std::str::from_utf8(bytes).map_err(|_| HttpError::Malformed)?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let first = [word(), word(), word()];
    let version = if is_request { &first[2] } else { &first[0] };
    let is_status = first[1].len() == 3 && first[1].bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = if is_request { first[1].starts_with('/') } else { is_status };
    if !matches!(version.as_str(), "HTTP/1.0" | "HTTP/1.1") || first[0].is_empty() || !is_valid {
        return Err(HttpError::Malformed);
    }
    let header = |line: &str| {
        let (name, value) = line.split_once(':').ok_or(HttpError::Malformed)?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        if is_name { Ok((name.to_ascii_lowercase(), value.trim().to_owned())) } else { Err(HttpError::Malformed) }
    };
    Ok(HttpMessage { first, headers: lines.map(header).collect::<Result<_, _>>()?, body: Vec::new() })
}

fn content_length(message: &HttpMessage) -> Result<usize, HttpError> {
    if message.header("transfer-encoding").is_some() {
        return Err(HttpError::TransferEncoding);
    }
    let mut lengths = message.headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let Some(first) = lengths.next() else { return Ok(0) };
    // Two lengths that differ make request smuggling possible.
    if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) || lengths.any(|other| other != first) {
        return Err(HttpError::Malformed);
    }
    first.parse().map_err(|_| HttpError::BodyTooLong)
}

/// The head of a response, as Paddle's server writes it.
pub fn response_head(status: u16, length: usize, keep_alive: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    };
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Length: {length}\r\nContent-Type: application/json; charset=utf8\r\n\
         Connection: {connection}\r\n\r\n"
    );
    head.into_bytes()
}

/// A request. `headers`: whole lines, each with its `\r\n`.
pub fn request(method: &str, path: &str, host: &str, body: &[u8], headers: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Percent-encodes a name for a path.
pub fn encode(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte);
    name.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Decodes a percent-encoded path.
pub fn decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, behind @ ..] = rest {
        let digit = |at: usize| behind.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(parser: &mut HttpParser, bytes: &[u8]) -> Result<Vec<HttpMessage>, HttpError> {
        parser.feed(bytes);
        std::iter::from_fn(|| parser.next_message().transpose()).collect()
    }

    proptest! {
        #[test]
        fn requests_are_the_same_wherever_they_are_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4), cuts in prop::collection::vec(0usize..900, 0..6),
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|body| request("POST", "/k", "h", body, "X: y\r\n")).collect();
            let whole = parse(&mut HttpParser::of_requests(), &bytes).unwrap();
            prop_assert_eq!(whole.iter().map(|one| &one.body).collect::<Vec<_>>(), bodies.iter().collect::<Vec<_>>());
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut parser = HttpParser::of_requests();
            let pieces = cuts.windows(2).map(|ends| parse(&mut parser, &bytes[ends[0]..ends[1]]).unwrap());
            let parts: Vec<HttpMessage> = pieces.flatten().collect();
            prop_assert_eq!(parts, whole);
            prop_assert!(parser.is_empty());
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            let _ = parse(&mut HttpParser::of_requests(), &bytes);
            let _ = parse(&mut HttpParser::of_responses(), &bytes);
        }

        #[test]
        fn encoded_names_are_decoded(name in ".*") {
            prop_assert!(encode(&name).is_ascii());
            prop_assert_eq!(decode(&encode(&name)), name);
        }
    }

    #[test]
    fn malformed_requests_have_their_status() {
        let status = |text: &str| parse(&mut HttpParser::of_requests(), text.as_bytes()).map_err(HttpError::status);
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(MAX_HEAD));
        for (text, expected) in [
            ("hello\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            ("PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            ("PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            ("PUT / HTTP/1.1\r\nContent-Length: 104857600\r\n\r\n", 413),
            ("PUT / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413),
            ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            (&long, 431),
        ] {
            assert_eq!(status(text), Err(expected), "{text:.60}");
        }
        assert_eq!(parse(&mut HttpParser::of_requests(), &[b'x'; MAX_HEAD + 1]), Err(HttpError::HeadTooLong));
    }

    #[test]
    fn connections_are_kept_alive_by_version() {
        let keeps_alive = |text: &str| parse(&mut HttpParser::of_requests(), text.as_bytes()).unwrap()[0].keeps_alive();
        assert!(
            keeps_alive("GET / HTTP/1.1\r\n\r\n") && keeps_alive("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
        );
        assert!(!keeps_alive("GET / HTTP/1.0\r\n\r\n") && !keeps_alive("GET / HTTP/1.1\r\nconnection: close\r\n\r\n"));
    }

    #[test]
    fn a_response_is_parsed_as_it_is_written() {
        let read = parse(&mut HttpParser::of_responses(), &response_head(404, 0, false)).unwrap().remove(0);
        assert_eq!((read.status(), read.header("connection"), read.body.len()), (Some(404), Some("close"), 0));
    }
}
