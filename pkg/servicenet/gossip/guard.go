package gossip

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"golang.org/x/time/rate"
)

// guard stands between the network and memberlist: it decrypts what members send, and passes on only messages whose cost is bounded.
// The key protects from strangers alone, for everybody who ever had a token knows it. So the guard bounds, before memberlist parses
// anything, the size and the kind of each message, the numbers in it that memberlist would allocate for, the large states in memory
// at one time, and the bytes of states per second. NotifyAlive bounds what memberlist keeps of a message.
//
// The wire format is memberlist's. memberlist itself gets no key, for it would parse all that the key opens: packed messages of 40 MB
// in a packet, states of 20 MB with a million members, names of any length.
type guard struct {
	keys   []cipher.AEAD // the first encrypts
	most   int           // bytes of a state
	large  chan struct{} // a place for each state beyond smallState that others send at one time
	states *rate.Limiter // bytes of states read
	sends  *rate.Limiter // bytes of states sent: a request of some bytes asks for the whole state
}

// Bounds of messages. A state of a real member takes about 160 bytes.
const (
	packetSize  = 1472 // bytes of a packet
	maxParts    = 64   // of a packet: memberlist's shortest messages have some 40 bytes
	stateSize   = 256  // bytes of a state for each member of a full pool
	smallState  = 64 << 10
	largeStates = 2
	stateRate   = 1 << 20  // bytes a second
	sendRate    = 16 << 20 // bytes a second
	shortStream = 1 << 10  // bytes of a message in a stream that is no state
)

// Types of memberlist's messages.
const (
	typePing         = 0
	typeIndirectPing = 1
	typeAck          = 2
	typeAlive        = 4
	typeDead         = 5
	typeState        = 6
	typeCompound     = 7
	typeUser         = 8
	typeEncrypted    = 10
	typeNack         = 11
	typeCRC          = 12
	typeError        = 13
)

const (
	cryptVersion = 1
	nonceSize    = 12
	sealSize     = 1 + nonceSize + 16 // bytes that encryption adds
	crcSize      = 5
	streamHead   = 5  // its type and its length
	minState     = 40 // bytes of the shortest state of a member: the names of its fields
)

func newGuard(key []byte, further [][]byte, members int) (*guard, error) {
	most := members*stateSize + smallState
	g := &guard{most: most, large: make(chan struct{}, largeStates),
		states: rate.NewLimiter(stateRate, 2*max(most, stateRate)), sends: rate.NewLimiter(sendRate, 2*max(most, sendRate))}
	for _, k := range append([][]byte{key}, further...) {
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		g.keys = append(g.keys, aead)
	}
	return g, nil
}

// seal appends the encrypted message to b. It authenticates around too.
func (g *guard) seal(b, message, around []byte) []byte {
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	b = append(append(b, cryptVersion), nonce[:]...)
	return g.keys[0].Seal(b, nonce[:], message, around)
}

var errSealed = errors.New("no key opens the message")

// open decrypts a message.
func (g *guard) open(b, around []byte) ([]byte, error) {
	if len(b) < sealSize || b[0] != cryptVersion {
		return nil, errSealed
	}
	for _, k := range g.keys {
		if message, err := k.Open(nil, b[1:1+nonceSize], b[1+nonceSize:], around); err == nil {
			return message, nil
		}
	}
	return nil, errSealed
}

// packet returns the message in a packet.
func (g *guard) packet(b []byte) ([]byte, error) {
	if len(b) > packetSize {
		return nil, fmt.Errorf("packet: given more than %d bytes", packetSize)
	}
	m, err := g.open(b, nil)
	if err != nil {
		return nil, err
	}
	return m, checkPacket(m)
}

// checkPacket refuses messages that are not for packets, and more than one request in a packet: each costs memberlist a packet or two.
func checkPacket(m []byte) error {
	if len(m) > crcSize && m[0] == typeCRC {
		m = m[crcSize:]
	}
	if len(m) < 2 {
		return errors.New("packet: too short")
	}
	if m[0] != typeCompound {
		_, err := checkPart(m)
		return err
	}
	n, requests := int(m[1]), 0
	if n > maxParts {
		return fmt.Errorf("packet: has %d parts: want at most %d", n, maxParts)
	}
	at := 2 + 2*n
	for i := range n {
		if at > len(m) {
			return errors.New("packet: its parts are longer than itself")
		}
		end := min(at+int(binary.BigEndian.Uint16(m[2+2*i:])), len(m)) // memberlist drops a last part that is cut
		request, err := checkPart(m[at:end])
		if err != nil {
			return err
		}
		if request {
			requests++
		}
		at = end
	}
	if requests > 1 {
		return fmt.Errorf("packet: has %d requests: want at most 1", requests)
	}
	return nil
}

func checkPart(m []byte) (request bool, _ error) {
	if len(m) == 0 {
		return false, errors.New("packet: has an empty part")
	}
	switch k := m[0]; {
	case k <= typeIndirectPing:
		return true, nil
	case k <= typeDead, k == typeUser, k == typeNack:
		return false, nil
	default:
		return false, fmt.Errorf("packet: has a message of type %d", k)
	}
}

// stream reads the only message of a stream. release gives back the place that it may take: see guard.large.
func (g *guard) stream(r io.Reader, accepted bool) (m []byte, release func(), err error) {
	release = func() {}
	head := make([]byte, streamHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, release, err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if head[0] != typeEncrypted || size < sealSize || size > int64(g.most+sealSize) {
		return nil, release, fmt.Errorf("stream: begins with type %d and %d bytes: want an encrypted message of at most %d bytes", head[0],
			size, g.most)
	}
	if accepted && size > smallState {
		select {
		case g.large <- struct{}{}:
			release = func() { <-g.large }
		default:
			return nil, release, fmt.Errorf("stream: other members already send %d large states", largeStates)
		}
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, release, err
	}
	if m, err = g.open(body, head); err != nil {
		return nil, release, err
	}
	if err := checkStream(m); err != nil {
		return nil, release, err
	}
	return m, release, take(g.states, len(m))
}

// checkStream refuses messages that are not for streams, and states that claim to be larger than they are.
func checkStream(m []byte) error {
	switch {
	case len(m) == 0:
		return errors.New("stream: has an empty message")
	case m[0] == typePing, m[0] == typeAck, m[0] == typeError:
		if len(m) > shortStream {
			return fmt.Errorf("stream: a message of type %d has %d bytes: want at most %d", m[0], len(m), shortStream)
		}
		return nil
	case m[0] != typeState:
		return fmt.Errorf("stream: has a message of type %d", m[0])
	}
	var head struct{ Nodes, UserStateLen int }
	d := codec.NewDecoderBytes(m[1:], &codec.MsgpackHandle{})
	if err := d.Decode(&head); err != nil {
		return fmt.Errorf("stream: state: %w", err)
	}
	if head.Nodes < 0 || head.Nodes > len(m)/minState || head.UserStateLen != 0 {
		return fmt.Errorf("stream: state of %d bytes claims %d members and %d bytes more", len(m), head.Nodes, head.UserStateLen)
	}
	return nil
}

// take takes n bytes from a budget. It waits no longer than memberlist would wait for the other end.
func take(l *rate.Limiter, n int) error {
	now := time.Now()
	r := l.ReserveN(now, n)
	wait := r.DelayFrom(now)
	if wait > streamTimeout/2 {
		r.CancelAt(now)
		return errors.New("stream: members exchange more bytes of states than the budget has")
	}
	time.Sleep(wait)
	return nil
}
