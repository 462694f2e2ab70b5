//! As much of AMQP 0-9-1 as a publisher needs: one channel, queues, persistent messages, publisher confirms.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;

/// Class and method.
type Method = (u16, u16);
const START: Method = (10, 10);
const START_OK: Method = (10, 11);
const TUNE: Method = (10, 30);
const TUNE_OK: Method = (10, 31);
const OPEN: Method = (10, 40);
const OPEN_OK: Method = (10, 41);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const DECLARE: Method = (50, 10);
const DECLARE_OK: Method = (50, 11);
const PURGE: Method = (50, 30);
const PURGE_OK: Method = (50, 31);
const PUBLISH: Method = (60, 40);
const ACK: Method = (60, 80);
const SELECT: Method = (85, 10);
const SELECT_OK: Method = (85, 11);

pub struct Publisher {
    stream: BufReader<TcpStream>,
    published: u64,
    confirmed: u64,
}

impl Publisher {
    pub fn open(port: u16) -> std::io::Result<Publisher> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut publisher = Publisher { stream: BufReader::new(stream), published: 0, confirmed: 0 };
        publisher.stream.get_mut().write_all(b"AMQP\0\0\x09\x01")?;
        publisher.receive(START)?;
        let mut login = table(&[]);
        login.extend(short_string("PLAIN"));
        login.extend(long_string("\0guest\0guest"));
        login.extend(short_string("en_US"));
        publisher.send(0, START_OK, &login)?;
        // What it proposes, but without heartbeats: channels, size of a frame, seconds.
        let mut limits = publisher.receive(TUNE)?;
        limits.truncate(6);
        limits.extend([0, 0]);
        publisher.send(0, TUNE_OK, &limits)?;
        publisher.send(0, OPEN, &[short_string("/"), short_string(""), vec![0]].concat())?;
        publisher.receive(OPEN_OK)?;
        publisher.call(CHANNEL_OPEN, &short_string(""), CHANNEL_OPEN_OK)?;
        publisher.call(SELECT, &[0], SELECT_OK)?;
        Ok(publisher)
    }

    /// A durable queue.
    pub fn declare(&mut self, queue: &str, arguments: &[(&str, &str)]) -> std::io::Result<()> {
        const DURABLE: u8 = 2;
        let what = [vec![0, 0], short_string(queue), vec![DURABLE], table(arguments)].concat();
        self.call(DECLARE, &what, DECLARE_OK)
    }

    pub fn purge(&mut self, queue: &str) -> std::io::Result<()> {
        self.call(PURGE, &[vec![0, 0], short_string(queue), vec![0]].concat(), PURGE_OK)
    }

    /// A persistent message that leaves the queue after so many milliseconds.
    pub fn publish(&mut self, queue: &str, body: &str, expires_ms: u64) -> std::io::Result<()> {
        const PERSISTENT: u8 = 2;
        const HAS_MODE_AND_EXPIRATION: u16 = 0x1100;
        let (class, _) = PUBLISH;
        let what = [vec![0, 0], short_string(""), short_string(queue), vec![0]].concat();
        let mut header = [class.to_be_bytes(), [0, 0]].concat();
        header.extend((body.len() as u64).to_be_bytes());
        header.extend(HAS_MODE_AND_EXPIRATION.to_be_bytes());
        header.push(PERSISTENT);
        header.extend(short_string(&expires_ms.to_string()));
        let frames = [
            frame(METHOD, 1, &method(PUBLISH, &what)),
            frame(HEADER, 1, &header),
            frame(BODY, 1, body.as_bytes()),
        ];
        self.published += 1;
        self.stream.get_mut().write_all(&frames.concat())
    }

    /// Until no more than so many messages are unconfirmed.
    pub fn wait_for_confirms(&mut self, unconfirmed: u64) -> std::io::Result<()> {
        while self.published - self.confirmed > unconfirmed {
            let ack = self.receive(ACK)?;
            // The number of a message; and, if the byte after it says so, of all before it.
            let tag = u64::from_be_bytes(ack[..8].try_into().expect("8 bytes"));
            self.confirmed = if ack[8] & 1 == 1 { tag } else { self.confirmed + 1 };
        }
        Ok(())
    }

    fn call(&mut self, what: Method, arguments: &[u8], answer: Method) -> std::io::Result<()> {
        self.send(1, what, arguments)?;
        self.receive(answer).map(|_| ())
    }

    fn send(&mut self, channel: u16, what: Method, arguments: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(&frame(METHOD, channel, &method(what, arguments)))
    }

    /// The arguments of the next method, which has to be this one.
    fn receive(&mut self, expected: Method) -> std::io::Result<Vec<u8>> {
        let mut head = [0; 7];
        self.stream.read_exact(&mut head)?;
        let size = u32::from_be_bytes(head[3..].try_into().expect("4 bytes")) as usize;
        let mut payload = vec![0; size + 1];
        self.stream.read_exact(&mut payload)?;
        let number = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
        assert!(head[0] == METHOD && payload[size] == END, "not a method: {head:?}");
        let is = (number(0), number(2));
        assert_eq!(is, expected, "RabbitMQ said {}", String::from_utf8_lossy(&payload[4..size]));
        Ok(payload[4..size].to_vec())
    }
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend(length(payload.len()));
    frame.extend(payload);
    frame.push(END);
    frame
}

fn method((class, method): Method, arguments: &[u8]) -> Vec<u8> {
    [&class.to_be_bytes(), &method.to_be_bytes(), arguments].concat()
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("short").to_be_bytes()
}

fn short_string(text: &str) -> Vec<u8> {
    let mut string = vec![u8::try_from(text.len()).expect("short")];
    string.extend(text.as_bytes());
    string
}

fn long_string(text: &str) -> Vec<u8> {
    [&length(text.len()), text.as_bytes()].concat()
}

fn table(entries: &[(&str, &str)]) -> Vec<u8> {
    let entry =
        |(name, value): &(&str, &str)| [short_string(name), b"S".to_vec(), long_string(value)].concat();
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    [length(entries.len()).to_vec(), entries].concat()
}
