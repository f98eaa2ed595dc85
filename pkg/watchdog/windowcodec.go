package watchdog

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A datagram of the window is the payload of an authenticated frame (pkg/torus). All numbers are big-endian. The first ten bytes are the
// same in all versions:
//
//	0      version, 1
//	1      kind: 1 statement, 2 mail, 3 denial
//	2      random number of the sender's process, 8 bytes, not 0
//	10     content
//
//	statement: boot of the sender's kernel, 16 bytes; number of words, 2 bytes; for each word its name, 2 bytes,
//	           and its value, 4 bytes. The name is a register's address, or names a word of the register file's extension
//	           page. The watchdog word comes last.
//	mail:      a datagram of the mailbox, 1 to MaxWindowMail bytes
//	denial:    empty; the sender refuses the receiver's process, because another one holds its side
const (
	windowVersion = 1

	windowStatement = 1
	windowMail      = 2
	windowDenial    = 3

	windowHead      = 10
	statementHead   = windowHead + len(BootID{}) + 2
	windowWordBytes = 6
)

// Bounds of a datagram.
const (
	MaxWindowWords = 320
	MaxWindowMail  = 8100 // in bytes
)

// BootID names one boot of a kernel.
type BootID [16]byte

// WindowWord is a word by its name.
type WindowWord struct {
	Name  uint16
	Value uint32
}

// WindowDatagram is a decoded datagram.
type WindowDatagram struct {
	Life   uint64
	Boot   BootID
	Words  []WindowWord // of a statement; never nil there
	Mail   []byte       // a part of the input; nil: no mail
	Denied bool
	// Statement: it is a statement, also one of a later version, of which only Life is known.
	Statement bool
}

var (
	// ErrWindowVersion is wrapped if a datagram has a version that this program does not know.
	ErrWindowVersion = errors.New("unknown version of a window datagram")
	// ErrWindowMalformed is wrapped if the bytes are no datagram.
	ErrWindowMalformed = errors.New("window datagram malformed")
)

func appendWindowHead(dst []byte, kind byte, life uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, windowVersion, kind), life)
}

// AppendStatement appends a statement. It refuses more than MaxWindowWords words, and the number 0 for a process.
func AppendStatement(dst []byte, life uint64, boot BootID, words []WindowWord) ([]byte, error) {
	if life == 0 || len(words) > MaxWindowWords {
		return dst, fmt.Errorf("encode window statement: %d words of process %d: want at most %d, of a process that is not 0",
			len(words), life, MaxWindowWords)
	}
	dst = append(appendWindowHead(dst, windowStatement, life), boot[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(words)))
	for _, w := range words {
		dst = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, w.Name), w.Value)
	}
	return dst, nil
}

// AppendMail appends a datagram of the mailbox. It refuses an empty one, one above MaxWindowMail bytes, and the number 0 for
// a process.
func AppendMail(dst []byte, life uint64, mail []byte) ([]byte, error) {
	if life == 0 || len(mail) == 0 || len(mail) > MaxWindowMail {
		return dst, fmt.Errorf("encode window mail: %d bytes of process %d: want 1 to %d, of a process that is not 0",
			len(mail), life, MaxWindowMail)
	}
	return append(appendWindowHead(dst, windowMail, life), mail...), nil
}

// AppendDenial appends a denial: the process with that random number holds the receiver's side of the window.
func AppendDenial(dst []byte, holder uint64) []byte {
	return appendWindowHead(dst, windowDenial, max(holder, 1))
}

// DecodeWindow decodes a datagram. The error wraps ErrWindowVersion or ErrWindowMalformed.
func DecodeWindow(b []byte) (WindowDatagram, error) {
	bad := func(format string, args ...any) (WindowDatagram, error) {
		return WindowDatagram{}, fmt.Errorf("%w: %s", ErrWindowMalformed, fmt.Sprintf(format, args...))
	}
	if len(b) < windowHead {
		return bad("%d bytes: want at least %d", len(b), windowHead)
	}
	d := WindowDatagram{Life: binary.BigEndian.Uint64(b[2:]), Statement: b[1] == windowStatement}
	switch {
	case d.Life == 0:
		return bad("process is 0: want a random number")
	case b[0] != windowVersion:
		return d, fmt.Errorf("%w: %d: want %d", ErrWindowVersion, b[0], windowVersion)
	}
	rest := b[windowHead:]
	switch b[1] {
	case windowStatement:
		if len(b) < statementHead {
			return bad("statement of %d bytes: want at least %d", len(b), statementHead)
		}
		d.Boot = BootID(rest[:len(d.Boot)])
		n := int(binary.BigEndian.Uint16(rest[len(d.Boot):]))
		rest = b[statementHead:]
		if n > MaxWindowWords || len(rest) != n*windowWordBytes {
			return bad("statement of %d words in %d bytes: want at most %d words of %d bytes", n, len(rest), MaxWindowWords, windowWordBytes)
		}
		d.Words = make([]WindowWord, n)
		for i := range d.Words {
			at := rest[i*windowWordBytes:]
			d.Words[i] = WindowWord{Name: binary.BigEndian.Uint16(at), Value: binary.BigEndian.Uint32(at[2:])}
		}
	case windowMail:
		if len(rest) == 0 || len(rest) > MaxWindowMail {
			return bad("mail of %d bytes: want 1 to %d", len(rest), MaxWindowMail)
		}
		d.Mail = rest
	case windowDenial:
		if len(rest) != 0 {
			return bad("denial with %d bytes: want none", len(rest))
		}
		d.Denied = true
	default:
		return bad("kind is %d: want 1 to 3", b[1])
	}
	return d, nil
}
