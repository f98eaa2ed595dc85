package mailbox

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// patience bounds the waits for expected events.
const patience = time.Minute

func mustOpen(t testing.TB, dir string, half fault.Half) *Box {
	t.Helper()
	b, err := Open(dir, half)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// run runs the box and returns what arrives. It ends with the test.
func run(t testing.TB, b *Box) <-chan Message {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got, done := make(chan Message, 10_000), make(chan error, 1)
	go func() { done <- b.Run(ctx, func(m Message) { got <- m }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("Run did not end with its context")
		}
	})
	return got
}

func next(t testing.TB, c <-chan Message) Message {
	t.Helper()
	select {
	case m := <-c:
		return m
	case <-time.After(patience):
		t.Fatal("no message")
		return Message{}
	}
}

func TestMessagesPassInBothDirections(t *testing.T) {
	dir := t.TempDir()
	host, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	atHost, atDNP := run(t, host), run(t, dnp)
	payload := []byte(strings.Repeat("e", MaxPayload))
	for _, err := range []error{host.Send(Message{Type: Envelope, Payload: payload}), host.Ring(), dnp.Ring()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	first := next(t, atDNP)
	if first.Type != Envelope || string(first.Payload) != string(payload) {
		t.Errorf("%s of %d bytes", first.Type, len(first.Payload))
	}
	if m := next(t, atDNP); m.Type != Doorbell || m.Payload != nil {
		t.Errorf("%+v", m)
	}
	if string(first.Payload) != string(payload) {
		t.Error("the payload was not the handler's to keep")
	}
	if m := next(t, atHost); m.Type != Doorbell {
		t.Errorf("%+v", m)
	}
	if s := host.Stats(); s.Sent != 2 || s.Received != 1 {
		t.Errorf("%+v", s)
	}
	info, err := os.Stat(filepath.Join(dir, "host.mbox"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info.Mode(), err)
	}
}

// A third process sends to either half, also where the paths are long.
func TestThirdProcessSendsToEitherHalf(t *testing.T) {
	for _, name := range []string{"d", strings.Repeat("d", 120)} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m := Message{Type: Recovery, Payload: []byte("{}")}
		if err := Tell(dir, fault.HalfDNP, m); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "dnp.mbox: Recovery") {
			t.Errorf("nobody there: %v", err)
		}
		got := run(t, mustOpen(t, dir, fault.HalfDNP))
		if err := Tell(dir, fault.HalfDNP, m); err != nil {
			t.Fatal(err)
		}
		if got := next(t, got); got.Type != Recovery || string(got.Payload) != "{}" {
			t.Errorf("%+v", got)
		}
		if err := Tell(dir, fault.HalfDNP, Message{Type: Recovery, Payload: make([]byte, MaxPayload+1)}); !errors.Is(err, ErrTooLong) {
			t.Errorf("too long: %v", err)
		}
		_ = mustOpen(t, dir, fault.HalfHost) // does not read: its queue fills
		err := error(nil)
		for n := 0; err == nil && n < 100_000; n++ {
			err = Tell(dir, fault.HalfHost, m)
		}
		if !errors.Is(err, ErrDropped) {
			t.Errorf("a full mailbox: %v", err)
		}
	}
}

func TestFullNeverBlocks(t *testing.T) {
	dir := t.TempDir()
	host, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	var err error
	sent := 0
	for ; err == nil && sent < 1_000_000; sent++ {
		err = host.Send(Message{Type: Envelope, Payload: make([]byte, 1000)})
	}
	if !errors.Is(err, ErrDropped) || host.Stats().DroppedFull != 1 {
		t.Fatalf("after %d messages: %v, %+v", sent, err, host.Stats())
	}
	if err := host.Ring(); err != nil {
		t.Errorf("ringing at a full mailbox: %v", err)
	}
	if s := host.Stats(); s.DroppedFull != 1 {
		t.Errorf("%d are counted as dropped: nothing is lost by a doorbell that finds no room", s.DroppedFull)
	}
	got := run(t, dnp)
	for range sent - 1 {
		if m := next(t, got); m.Type != Envelope {
			t.Errorf("%s", m.Type)
		}
	}
	if err := host.Ring(); err != nil { // and there is room again
		t.Error(err)
	}
	next(t, got)
}

func TestPeerAbsentAndBack(t *testing.T) {
	dir := t.TempDir()
	host := mustOpen(t, dir, fault.HalfHost)
	if err := host.Ring(); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "dnp.mbox") {
		t.Errorf("nobody there: %v", err)
	}
	dnp, err := Open(dir, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	// As if killed: the socket file stays.
	if err := dnp.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := host.Ring(); !errors.Is(err, ErrAbsent) || host.Stats().DroppedAbsent != 2 {
		t.Errorf("dead peer: %v, %+v", err, host.Stats())
	}
	dnp = mustOpen(t, dir, fault.HalfDNP) // removes the stale socket
	got := run(t, dnp)
	if err := host.Ring(); err != nil {
		t.Error(err)
	}
	next(t, got)
}

func TestOpenRefusesOccupiedMailbox(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir, fault.HalfHost)
	if _, err := Open(dir, fault.HalfHost); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "host.mbox") {
		t.Errorf("second box: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dnp.mbox"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, fault.HalfDNP); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("a file in the way: %v", err)
	}
	if _, err := Open(dir, 0); err == nil || !strings.Contains(err.Error(), "half is 0") {
		t.Errorf("no half: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "absent"), fault.HalfDNP); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("no directory: %v", err)
	}
}

func TestBadDatagramsAreCountedAndSkipped(t *testing.T) {
	dir := t.TempDir()
	dnp := mustOpen(t, dir, fault.HalfDNP)
	got := run(t, dnp)
	c, err := net.Dial("unixgram", dnp.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	good, _ := Message{Type: Envelope, Payload: []byte("x")}.Append(nil)
	flipped := append([]byte(nil), good...)
	flipped[1] ^= 1
	for _, b := range [][]byte{{1, 2, 3}, flipped, make([]byte, 20_000), {9, 0, 0, 0, 0}, good} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if m := next(t, got); m.Type != Envelope || string(m.Payload) != "x" {
		t.Errorf("%+v", m)
	}
	if s := dnp.Stats(); s.Bad != 4 || s.Received != 1 {
		t.Errorf("%+v", s)
	}
	if _, err := c.Write(nil); err != nil { // an empty datagram rings
		t.Fatal(err)
	}
	if m := next(t, got); m.Type != Doorbell {
		t.Errorf("%+v", m)
	}
}

func TestCloseEndsRun(t *testing.T) {
	dir := t.TempDir()
	b := mustOpen(t, dir, fault.HalfHost)
	done := make(chan error, 1)
	go func() { done <- b.Run(context.Background(), func(Message) {}) }()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Run goes on")
	}
	if err := b.Send(Message{Type: Doorbell}); !errors.Is(err, ErrClosed) {
		t.Errorf("send after close: %v", err)
	}
	if _, err := os.Lstat(b.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// Socket addresses hold 107 bytes; state directories may be longer.
func TestLongStateDirectoryWorks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	host, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	got := run(t, dnp)
	if err := host.Ring(); err != nil {
		t.Fatal(err)
	}
	next(t, got)
	if _, err := os.Lstat(filepath.Join(dir, "dnp.mbox")); err != nil {
		t.Error(err)
	}
}

func BenchmarkSend(b *testing.B) {
	dir := b.TempDir()
	host, dnp := mustOpen(b, dir, fault.HalfHost), mustOpen(b, dir, fault.HalfDNP)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- dnp.Run(ctx, func(Message) {}) }()
	b.ReportAllocs()
	for b.Loop() {
		if err := host.Ring(); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// leaveRoom makes tries sends to a slow half. It expects the half's queue to take least to most messages, to keep
// room for others behind them, and no count of drops.
func leaveRoom(t *testing.T, from *Box, send func(Message) error, m Message, tries, least, most, behind int, other Message) {
	t.Helper()
	taken := 0
	for range tries {
		switch err := send(m); {
		case err == nil:
			taken++
		case !errors.Is(err, ErrDropped):
			t.Fatal(err)
		}
	}
	if taken < least || taken > most {
		t.Errorf("%d were taken, want %d to %d", taken, least, most)
	}
	for i := range behind {
		if err := from.Send(other); err != nil { // not Ring, to which a full queue is no error
			t.Errorf("message %d behind them: %v", i, err)
		}
	}
	if s := from.Stats(); s.DroppedFull != 0 {
		t.Errorf("%d are counted as dropped", s.DroppedFull)
	}
}

// TestSpareLeavesRoom checks that SendSpare never fills the queue of a slow half.
func TestSpareLeavesRoom(t *testing.T) {
	dir := t.TempDir()
	host, _ := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP) // without a reader
	chunk := Message{Type: Envelope, Payload: make([]byte, 1200)}
	leaveRoom(t, host, host.SendSpare, chunk, 20, 2, 5, 5, chunk)
	_ = host.Close()
	if err := host.SendSpare(Message{Type: Doorbell}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestTestsLeaveRoom: neither do the probes of a diagnosis, which six neighbours may have passed on at once.
func TestTestsLeaveRoom(t *testing.T) {
	dir := t.TempDir()
	_, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	leaveRoom(t, dnp, dnp.sendTest, Message{Type: Test, Payload: make([]byte, 71)}, 20, 3, 8, 2, Message{Type: Doorbell})
}

// TestOfferLeavesRoom: small messages that their sender keeps leave room for more than five others in the smallest queue, ten messages, and
// are not counted as dropped: the DNP half would call itself sick.
func TestOfferLeavesRoom(t *testing.T) {
	dir := t.TempDir()
	_, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	leaveRoom(t, dnp, dnp.Offer, Message{Type: Jobs, Payload: make([]byte, 60)}, 100, 2, 4, 6, Message{Type: Doorbell})
}

// Messages count only from this process's user or root, by the kernel's word.
func TestSendersAreOfThisUser(t *testing.T) {
	own := uint32(os.Geteuid())
	of := func(uid uint32) []byte { return unix.UnixCredentials(&unix.Ucred{Pid: 1, Uid: uid, Gid: 0}) }
	for name, c := range map[string]struct {
		control []byte
		trusted bool
	}{
		"own user": {of(own), true}, "root": {of(0), true}, "another user": {of(own + 1), false},
		"no credentials": {nil, false}, "a descriptor": {unix.UnixRights(0), false}, "cut": {of(own)[:20], false},
		"twice": {append(of(own), of(own)...), false},
	} {
		if got := trusted(c.control); got != c.trusted {
			t.Errorf("%s: trusted %t, want %t", name, got, c.trusted)
		}
	}
}
