//! As much of HTTP as the master and its clients speak, from bytes to requests and answers and back. Pure.
//!
//! Nothing is allocated for a length before its bytes have come.

/// The longest head, bytes.
pub const MAX_HEAD: usize = 16 * 1024;
/// The longest body of a request, bytes.
pub const MAX_BODY: usize = 1024 * 1024;
/// The longest body of an answer, bytes: more than all that a master keeps.
pub const MAX_ANSWER: usize = 512 * 1024 * 1024;

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// This is no HTTP.
    Malformed,
    /// The head is too long.
    Head,
    /// The body is.
    Body,
    /// A body without a length of its own, in chunks.
    Chunked,
}

impl Broken {
    /// The answer's status.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Head => 431,
            Self::Body => 413,
            Self::Chunked => 501,
        }
    }
}

/// A request, or an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// The first line's words: method, path and version; or version, status and the rest.
    pub first: [String; 3],
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// What follows.
    pub body: Vec<u8>,
}

impl Message {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.header(name).is_some_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case(token)))
    }

    /// Whether the connection is to be kept, by who has made this request.
    pub fn keeps(&self) -> bool {
        match self.first[2].as_str() {
            "HTTP/1.0" => self.has_token("connection", "keep-alive"),
            _ => !self.has_token("connection", "close"),
        }
    }

    /// Whether a request is for another protocol.
    pub fn upgrades_to(&self, protocol: &str) -> bool {
        self.has_token("connection", "upgrade") && self.has_token("upgrade", protocol)
    }

    /// An answer's status.
    pub fn status(&self) -> Option<u16> {
        self.first[1].parse().ok()
    }
}

/// Makes requests, or answers, of what one end sends.
#[derive(Debug)]
pub struct Parser {
    bytes: Vec<u8>,
    /// No head ends before.
    looked: usize,
    head: Option<(Message, usize)>,
    most: usize,
    is_request: bool,
}

impl Parser {
    /// Of requests.
    pub fn of_requests() -> Self {
        Self { bytes: Vec::new(), looked: 0, head: None, most: MAX_BODY, is_request: true }
    }

    /// Of answers.
    pub fn of_answers() -> Self {
        Self { most: MAX_ANSWER, is_request: false, ..Self::of_requests() }
    }

    /// Takes what has come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory it holds, in bytes, roughly.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + if self.head.is_some() { MAX_HEAD } else { 0 }
    }

    /// Whether nothing has begun.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.head.is_none()
    }

    /// What has come behind the last message.
    pub fn rest(self) -> Vec<u8> {
        self.bytes
    }

    /// The next message; `None` when more has to come. After an error nothing is right any more.
    pub fn next_message(&mut self) -> Result<Option<Message>, Broken> {
        if self.head.is_none() {
            let from = self.looked.saturating_sub(3);
            let end = self.bytes[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at);
            self.looked = self.bytes.len();
            let Some(end) = end else {
                return if self.bytes.len() > MAX_HEAD { Err(Broken::Head) } else { Ok(None) };
            };
            if end > MAX_HEAD {
                return Err(Broken::Head);
            }
            let message = head(&self.bytes[..end], self.is_request)?;
            let length = length(&message)?;
            if length > self.most {
                return Err(Broken::Body);
            }
            self.bytes.drain(..end + 4);
            self.head = Some((message, length));
        }
        if self.head.as_ref().is_none_or(|(_, length)| self.bytes.len() < *length) {
            return Ok(None);
        }
        let Some((mut message, length)) = self.head.take() else { return Ok(None) };
        message.body = self.bytes.drain(..length).collect();
        self.looked = 0;
        // A large body leaves a large buffer.
        self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        Ok(Some(message))
    }
}

fn head(bytes: &[u8], is_request: bool) -> Result<Message, Broken> {
    let text = std::str::from_utf8(bytes).map_err(|_| Broken::Malformed)?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let first = [word(), word(), word()];
    let version = if is_request { &first[2] } else { &first[0] };
    let number = first[1].len() == 3 && first[1].bytes().all(|byte| byte.is_ascii_digit());
    let is_right = if is_request { first[1].starts_with('/') } else { number };
    if !matches!(version.as_str(), "HTTP/1.0" | "HTTP/1.1") || first[0].is_empty() || !is_right {
        return Err(Broken::Malformed);
    }
    let header = |line: &str| {
        let (name, value) = line.split_once(':').ok_or(Broken::Malformed)?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        if is_name { Ok((name.to_ascii_lowercase(), value.trim().to_owned())) } else { Err(Broken::Malformed) }
    };
    Ok(Message { first, headers: lines.map(header).collect::<Result<_, _>>()?, body: Vec::new() })
}

fn length(message: &Message) -> Result<usize, Broken> {
    if message.header("transfer-encoding").is_some() {
        return Err(Broken::Chunked);
    }
    let mut lengths = message.headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let Some(first) = lengths.next() else { return Ok(0) };
    // Two that differ are how requests are smuggled.
    if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) || lengths.any(|other| other != first) {
        return Err(Broken::Malformed);
    }
    first.parse().map_err(|_| Broken::Body)
}

/// The head of an answer as Paddle's server gives it, with more headers (whole lines, `\r\n` at the end of each).
pub fn answer(status: u16, length: usize, keep: bool, more: &str) -> Vec<u8> {
    let words = match status {
        101 => "Switching Protocols",
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
    let connection = if keep { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {status} {words}\r\nContent-Length: {length}\r\nContent-Type: application/json; charset=utf8\r\n\
         Connection: {connection}\r\n{more}\r\n"
    );
    head.into_bytes()
}

/// A request.
pub fn request(method: &str, path: &str, host: &str, body: &[u8], more: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n{more}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A name as it stands in a path.
pub fn encode(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte);
    name.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The way back.
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

    fn parse(parser: &mut Parser, bytes: &[u8]) -> Result<Vec<Message>, Broken> {
        parser.feed(bytes);
        std::iter::from_fn(|| parser.next_message().transpose()).collect()
    }

    proptest! {
        #[test]
        fn requests_are_the_same_wherever_they_are_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4), cuts in prop::collection::vec(0usize..900, 0..6),
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|body| request("POST", "/k", "h", body, "X: y\r\n")).collect();
            let whole = parse(&mut Parser::of_requests(), &bytes).unwrap();
            prop_assert_eq!(whole.iter().map(|one| &one.body).collect::<Vec<_>>(), bodies.iter().collect::<Vec<_>>());
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut parser = Parser::of_requests();
            let pieces = cuts.windows(2).map(|ends| parse(&mut parser, &bytes[ends[0]..ends[1]]).unwrap());
            let parts: Vec<Message> = pieces.flatten().collect();
            prop_assert_eq!(parts, whole);
            prop_assert!(parser.is_empty());
        }

        #[test]
        fn nothing_that_comes_is_too_much(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            let _ = parse(&mut Parser::of_requests(), &bytes);
            let _ = parse(&mut Parser::of_answers(), &bytes);
        }

        #[test]
        fn names_come_back(name in ".*") {
            prop_assert!(encode(&name).is_ascii());
            prop_assert_eq!(decode(&encode(&name)), name);
        }
    }

    #[test]
    fn what_breaks_the_rules_is_told_by_its_status() {
        let status = |text: &str| parse(&mut Parser::of_requests(), text.as_bytes()).map_err(Broken::status);
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
        assert_eq!(parse(&mut Parser::of_requests(), &[b'x'; MAX_HEAD + 1]), Err(Broken::Head));
    }

    #[test]
    fn connections_are_kept_as_the_versions_have_it() {
        let keeps = |text: &str| parse(&mut Parser::of_requests(), text.as_bytes()).unwrap()[0].keeps();
        assert!(keeps("GET / HTTP/1.1\r\n\r\n") && keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
        assert!(!keeps("GET / HTTP/1.0\r\n\r\n") && !keeps("GET / HTTP/1.1\r\nconnection: close\r\n\r\n"));
    }

    #[test]
    fn an_answer_is_read_as_it_is_written() {
        let read = parse(&mut Parser::of_answers(), &answer(404, 0, false, "X: y\r\n")).unwrap().remove(0);
        assert_eq!((read.status(), read.header("x"), read.body.len()), (Some(404), Some("y"), 0));
    }
}
