package gossip

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// attacker holds the gossip key, as everybody does who ever had a token. It speaks memberlist's own protocol.
type attacker struct {
	t  *testing.T
	to string
}

// join joins with memberlist itself, under any name and with any metadata, and leaves without a word.
func (a attacker) join(name string, meta []byte) {
	a.t.Helper()
	c := memberlist.DefaultLANConfig()
	c.Name, c.BindAddr, c.BindPort, c.SecretKey, c.LogOutput = name, "127.0.0.1", 0, key(1), io.Discard
	c.EnableCompression = false
	c.ProbeInterval, c.PushPullInterval, c.Delegate = time.Hour, time.Hour, described(meta)
	m, err := memberlist.Create(c)
	if err != nil {
		a.t.Fatal(err)
	}
	_, _ = m.Join([]string{a.to})
	if err := m.Shutdown(); err != nil {
		a.t.Fatal(err)
	}
}

// described is a memberlist delegate with nothing but metadata.
type described []byte

func (d described) NodeMeta(int) []byte             { return d }
func (described) NotifyMsg([]byte)                  {}
func (described) GetBroadcasts(int, int) [][]byte   { return nil }
func (described) LocalState(bool) []byte            { return nil }
func (described) MergeRemoteState(_ []byte, _ bool) {}

// stream sends one message over a stream, encrypted, and waits until the member closes it.
func (a attacker) stream(message []byte) {
	a.t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(len(message)+29))
	c, err := net.Dial("tcp", a.to)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(bound))
	if _, err := c.Write(append(head, encrypted(a.t, message, head)...)); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// packet sends one message in a packet, encrypted.
func (a attacker) packet(message []byte) {
	a.t.Helper()
	c, err := net.Dial("udp", a.to)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(encrypted(a.t, message, nil)); err != nil {
		a.t.Fatal(err)
	}
}

// encrypted encrypts as memberlist does.
func encrypted(t *testing.T, message, around []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher(key(1))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, 12)
	_, _ = rand.Read(nonce)
	return gcm.Seal(append([]byte{1}, nonce...), nonce, message, around)
}

// encoded is a message of memberlist: its type and then its parts.
func encoded(t *testing.T, kind byte, parts ...any) []byte {
	t.Helper()
	b := bytes.NewBuffer([]byte{kind})
	enc := codec.NewEncoder(b, &codec.MsgpackHandle{})
	for _, p := range parts {
		if err := enc.Encode(p); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

type stateHeader struct {
	Nodes, UserStateLen int
	Join                bool
}

type stateOf struct {
	Name        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Incarnation uint32
	State       int
	Vsn         []byte
}

// madeUp is the state of a member that does not exist.
func madeUp(name string, incarnation uint32) stateOf {
	return stateOf{Name: name, Addr: []byte{127, 0, 0, 1}, Port: 9, Incarnation: incarnation, Vsn: []byte{1, 5, 2, 0, 0, 0},
		Meta: fmt.Appendf(nil, `{"r":"node","i":%q,"x":%q}`, name, strings.Repeat("x", 200))}
}

// kept returns the bytes in use after a collection.
func kept() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// goesOn fails unless two members of the pool still pass broadcasts to each other.
func goesOn(t *testing.T, a, b *member) {
	t.Helper()
	for _, pair := range [][2]*member{{a, b}, {b, a}} {
		said := "after the attack, from " + pair[0].cfg.Name
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for end := time.After(bound); ; {
			if err := pair[0].Broadcast([]byte(said)); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-pair[1].broadcasts:
				if got == said {
					break
				}
				continue
			case <-tick.C:
				continue
			case <-end:
				t.Fatalf("%s no longer hears %s", pair[1].cfg.Name, pair[0].cfg.Name)
			}
			break
		}
	}
}

// TestNamesOfMadeUpMembersTakeNoMemory: each of 24 members of memberlist itself joins under a name of 1 MB.
func TestNamesOfMadeUpMembersTakeNoMemory(t *testing.T) {
	a := start(t, "a", key(1))
	b := start(t, "b", key(1), a)
	a.until(t, EventJoin, "b")
	before := kept()
	x := attacker{t, a.Addr().String()}
	for i := range 24 {
		x.join(fmt.Sprint(i, strings.Repeat("n", 1<<20)), nil)
	}
	if more := int64(kept()) - int64(before); more > 8<<20 {
		t.Errorf("the member keeps %d MiB of made-up names", more>>20)
	}
	if n := len(a.Members()); n != 2 {
		t.Errorf("%d members: want a and b alone", n)
	}
	goesOn(t, a, b)
}

// TestMadeUpMembersTakeBoundedMemory: thousands of members that do not exist, with short names, in streams and in packets.
func TestMadeUpMembersTakeBoundedMemory(t *testing.T) {
	const most = 40
	a := startConfig(t, Config{Name: "a", Key: key(1), Timing: calm, MaxMembers: most})
	b := start(t, "b", key(1), a)
	a.until(t, EventJoin, "b")
	before := kept()
	x := attacker{t, a.Addr().String()}
	for i := range 100 {
		parts := []any{stateHeader{Nodes: 20}}
		for k := range 20 {
			parts = append(parts, madeUp(fmt.Sprintf("made-up-%d-%d", i, k), uint32(k%2))) // memberlist stores incarnation 0 without an event
		}
		x.stream(encoded(t, 6, parts...))
		x.packet(encoded(t, 4, madeUp(fmt.Sprintf("told-%d", i), 1)))
	}
	if more := int64(kept()) - int64(before); more > 1<<20 {
		t.Errorf("the member keeps %d KiB of made-up members", more>>10)
	}
	if n := len(a.Members()); n > most {
		t.Errorf("%d members: want at most %d", n, most)
	}
	if err := (*delegate)(a.Net).NotifyAlive(&memberlist.Node{Name: "new"}); err == nil {
		t.Error("one more name: want a refusal")
	}
	if err := (*delegate)(a.Net).NotifyAlive(&memberlist.Node{Name: "b"}); err != nil {
		t.Errorf("an announcement of a known member: %v", err)
	}
	goesOn(t, a, b)
}

// TestOnlyAdmittedNamesJoin: a supervisor admits only the names of the topology.
func TestOnlyAdmittedNamesJoin(t *testing.T) {
	a := startConfig(t, Config{Name: "a", Key: key(1), Timing: calm, Admit: func(m Member) bool { return m.Name == "b" && m.Meta.ID == "b" }})
	b := start(t, "b", key(1), a)
	c := start(t, "c", key(1), a, b)
	b.until(t, EventJoin, "c")
	for joined := map[string]bool{}; len(joined) < 2; {
		joined[c.untilAny(t, EventJoin).Member.Name] = true
	}
	for _, m := range a.Members() {
		if m.Name != "a" && m.Name != "b" {
			t.Errorf("%s is a member", m.Name)
		}
	}
	goesOn(t, a, b)
}

// TestSmallMessagesTakeNoLargeMemory: messages of some bytes that announce millions, or unpack to them.
func TestSmallMessagesTakeNoLargeMemory(t *testing.T) {
	a := start(t, "a", key(1))
	b := start(t, "b", key(1), a)
	a.until(t, EventJoin, "b")
	x := attacker{t, a.Addr().String()}
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	_, _ = w.Write(make([]byte, 32<<20))
	_ = w.Close()
	type compressed struct {
		Algo uint8
		Buf  []byte
	}
	bomb := encoded(t, 9, compressed{Buf: packed.Bytes()})
	var short bytes.Buffer
	w = lzw.NewWriter(&short, lzw.LSB, 8)
	_, _ = w.Write(make([]byte, 200_000))
	_ = w.Close()
	small := encoded(t, 9, compressed{Buf: short.Bytes()})
	for name, send := range map[string]func(){
		"states":      func() { x.stream(encoded(t, 6, stateHeader{Nodes: 1 << 20})) },
		"user state":  func() { x.stream(encoded(t, 6, stateHeader{UserStateLen: 20 << 20})) },
		"a message":   func() { x.stream(encoded(t, 8, struct{ UserMsgLen int }{20 << 20})) },
		"a bomb":      func() { x.stream(bomb) },
		"packed":      func() { x.packet(small[:min(len(small), 1400)]) },
		"long packet": func() { x.packet(encoded(t, 4, madeUp(strings.Repeat("n", 20_000), 1))) },
		"no encryption": func() {
			c, err := net.Dial("tcp", x.to)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(encoded(t, 6, stateHeader{Nodes: 1 << 20}))
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		},
	} {
		before := allocated()
		for range 8 {
			send()
		}
		if more := allocated() - before; more > 16<<20 {
			t.Errorf("%s: 8 of them took %d MiB", name, more>>20)
		}
	}
	goesOn(t, a, b)
}

// TestMemberlistItselfIsAMember: the wire format is memberlist's.
func TestMemberlistItselfIsAMember(t *testing.T) {
	a := start(t, "a", key(1))
	attacker{t, a.Addr().String()}.join("b", []byte(`{"r":"node","i":"b"}`))
	a.until(t, EventJoin, "b")
}

// FuzzGuard: the guard handles any plain message, and passes on none that claims more members than it has bytes for.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{typeCompound, 2, 0, 2, 0, 2, typeAlive, 1, typePing, 1})
	f.Add([]byte{typeCRC, 1, 2, 3, 4, typeAck, 0})
	f.Add([]byte("\x06\x83\xa5Nodes\xce\x00\x10\x00\x00\xacUserStateLen\x00\xa4Join\xc2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = checkPacket(b)
		if err := checkStream(b); err == nil && len(b) > shortStream && b[0] != typeState {
			t.Errorf("a message of type %d with %d bytes passes", b[0], len(b))
		}
	})
}
