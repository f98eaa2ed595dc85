package jobs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind is the kind of a mail. The zero value is invalid.
type Kind uint8

// The kinds, and the fields of Mail that each uses. All integers are big endian.
const (
	// Raise, to the DNP half: broadcast the envelope. Request 8, priority 1, envelope.
	Raise Kind = iota + 1
	// Arrive, to the DNP half: this node has arrived at the barrier of that key (flag 1), or only queries it (flag
	// 0). The mail lists the ranks of the members that are gone; the answer lists those that have arrived. The host
	// half repeats it while callers wait. Hash 32, generation 8, flag 1, members 2, rank of this node among them 2,
	// count of those gone 2, their ranks 2 each.
	Arrive
	// Leave, to the DNP half: no caller waits here any more. Hash 32, generation 8.
	Leave
	// Taken, to the host half: the result of a Raise. Request 8, result 1, links 1.
	Taken
	// Delivered, to the host half: a broadcast that came. Envelope.
	Delivered
	// Status, to the host half: the answer to an Arrive, and a second one when the barrier is over. Hash 32,
	// generation 8, result 1, links 1, complete 1, count of those gone 2, their ranks 2 each, members 2, and a bit
	// for each that has arrived, by rank, low bit first.
	Status
)

// Result is the DNP half's result for a Raise or Arrive. The zero value is invalid.
type Result uint8

// The results.
const (
	OK      Result = iota + 1
	NoLinks        // no link of this node lives
	Busy           // too much of it at a time
	Refused        // it makes no sense to the DNP half, or it is of an earlier version
)

// String returns the result in words.
func (r Result) String() string {
	switch r {
	case OK:
		return "taken"
	case NoLinks:
		return "no link of this node lives"
	case Busy:
		return "the DNP half has too much of it to send"
	case Refused:
		return "the DNP half refuses it"
	}
	return fmt.Sprintf("Result(%d)", uint8(r))
}

// Key is a barrier's, the same at all of its members.
type Key struct {
	Hash       [32]byte // of the user, the names and the members
	Generation uint64
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(bytes.Compare(k.Hash[:], o.Hash[:]), cmp.Compare(k.Generation, o.Generation))
}

// Mail is one message in the mailbox between the halves, in either direction.
type Mail struct {
	Kind     Kind
	Request  uint64
	Priority uint8
	Result   Result
	Links    uint8 // that live
	Key      Key
	Flag     bool // Arrive: the node has arrived; Status: complete
	Members  int
	Rank     int    // of this node, from 0
	Gone     []int  // ranks of members that are gone
	Arrived  []bool // by rank
	Envelope []byte
}

// MaxEnvelope bounds the envelope of a eureka, in bytes: the capacity of an express broadcast.
const MaxEnvelope = 1200

var (
	// ErrMail is wrapped when bytes are no mail.
	ErrMail = errors.New("mail between the halves about jobs is malformed")
	// ErrLater is returned for a mail of a kind that a later version may have: it is ignored.
	ErrLater = errors.New("mail between the halves about jobs is of a later version")
)

// Append encodes a mail behind dst.
func (m Mail) Append(dst []byte) []byte {
	dst = append(dst, byte(m.Kind))
	switch m.Kind {
	case Raise:
		dst = append(binary.BigEndian.AppendUint64(dst, m.Request), m.Priority)
		dst = append(dst, m.Envelope...)
	case Arrive:
		dst = append(m.Key.append(dst), bit(m.Flag))
		dst = binary.BigEndian.AppendUint16(dst, uint16(m.Members))
		dst = binary.BigEndian.AppendUint16(dst, uint16(m.Rank))
		dst = appendRanks(dst, m.Gone)
	case Leave:
		dst = m.Key.append(dst)
	case Taken:
		dst = append(binary.BigEndian.AppendUint64(dst, m.Request), byte(m.Result), m.Links)
	case Delivered:
		dst = append(dst, m.Envelope...)
	case Status:
		dst = append(m.Key.append(dst), byte(m.Result), m.Links, bit(m.Flag))
		dst = binary.BigEndian.AppendUint16(appendRanks(dst, m.Gone), uint16(len(m.Arrived)))
		set := make([]byte, (len(m.Arrived)+7)/8)
		for i, a := range m.Arrived {
			set[i/8] |= bit(a) << (i % 8)
		}
		dst = append(dst, set...)
	}
	return dst
}

func (k Key) append(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(append(dst, k.Hash[:]...), k.Generation)
}

func appendRanks(dst []byte, ranks []int) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(ranks)))
	for _, r := range ranks {
		dst = binary.BigEndian.AppendUint16(dst, uint16(r))
	}
	return dst
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// DecodeMail reads a mail. Its envelope is a part of b.
func DecodeMail(b []byte) (Mail, error) {
	if len(b) == 0 {
		return Mail{}, fmt.Errorf("%w: empty", ErrMail)
	}
	m, r := Mail{Kind: Kind(b[0])}, mailReader{b: b[1:]}
	switch m.Kind {
	case Raise:
		m.Request, m.Priority = binary.BigEndian.Uint64(r.take(8)), r.take(1)[0]
		m.Envelope = r.envelope()
	case Arrive:
		m.Key, m.Flag = r.key(), r.flag()
		m.Members, m.Rank = r.count(), int(binary.BigEndian.Uint16(r.take(2)))
		m.Gone = r.ranks(m.Members)
		if m.Rank >= m.Members {
			r.fail("rank %d: want 0 to %d", m.Rank, m.Members-1)
		}
	case Leave:
		m.Key = r.key()
	case Taken:
		m.Request, m.Result, m.Links = binary.BigEndian.Uint64(r.take(8)), r.result(), r.take(1)[0]
	case Delivered:
		m.Envelope = r.envelope()
	case Status:
		m.Key, m.Result, m.Links, m.Flag = r.key(), r.result(), r.take(1)[0], r.flag()
		m.Gone = r.ranks(MaxMembers)
		n := r.count()
		set := r.take((n + 7) / 8)
		for i := range n {
			m.Arrived = append(m.Arrived, set[i/8]>>(i%8)&1 == 1)
		}
		if n%8 != 0 && set[n/8]>>(n%8) != 0 {
			r.fail("bits beyond the members")
		}
	case 0:
		r.fail("kind 0: want 1 to %d", Status)
	default:
		return Mail{}, ErrLater
	}
	if len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return Mail{}, r.err
	}
	return m, nil
}

// mailReader reads bytes from the front. After its first error it returns zeroes.
type mailReader struct {
	b   []byte
	err error
}

func (r *mailReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrMail, fmt.Sprintf(format, args...))
	}
}

func (r *mailReader) take(n int) []byte {
	if len(r.b) < n {
		r.fail("%d bytes are missing", n-len(r.b))
		r.b = nil
		return make([]byte, n)
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *mailReader) key() (k Key) {
	copy(k.Hash[:], r.take(len(k.Hash)))
	k.Generation = binary.BigEndian.Uint64(r.take(8))
	return k
}

// ranks are ascending, of so many members.
func (r *mailReader) ranks(members int) (out []int) {
	for range r.count() {
		rank := int(binary.BigEndian.Uint16(r.take(2)))
		if rank >= members || len(out) > 0 && rank <= out[len(out)-1] {
			r.fail("rank %d: want them ascending, below %d", rank, members)
			return nil
		}
		out = append(out, rank)
	}
	return out
}

func (r *mailReader) flag() bool {
	f := r.take(1)[0]
	if f > 1 {
		r.fail("flag %d: want 0 or 1", f)
	}
	return f == 1
}

func (r *mailReader) result() Result {
	v := Result(r.take(1)[0])
	if r.err == nil && (v < OK || v > Refused) {
		r.fail("result %d: want %d to %d", v, OK, Refused)
	}
	return v
}

// count is of members.
func (r *mailReader) count() int {
	n := int(binary.BigEndian.Uint16(r.take(2)))
	if n > MaxMembers {
		r.fail("%d members: want at most %d", n, MaxMembers)
		return 0
	}
	return n
}

// envelope is all that is left.
func (r *mailReader) envelope() []byte {
	if n := len(r.b); n == 0 || n > MaxEnvelope {
		r.fail("envelope of %d bytes: want 1 to %d", n, MaxEnvelope)
	}
	out := r.b
	r.b = nil
	return out
}
