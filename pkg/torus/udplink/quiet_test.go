package udplink

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// arrivals receives the packets of a link, and how they came.
type arrivals struct {
	now    chan []byte
	waited []time.Duration
	quiet  [][]byte
	refuse bool // all packets
}

func (a *arrivals) OnPacket(_ grid.Direction, b []byte)      { a.now <- slices.Clone(b) }
func (a *arrivals) OnSession(grid.Direction, *torus.Session) {}
func (a *arrivals) OnRefused(grid.Direction)                 {}
func (a *arrivals) OnQuiet(_ grid.Direction, b []byte, waited time.Duration) bool {
	a.quiet, a.waited = append(a.quiet, slices.Clone(b)), append(a.waited, waited)
	return !a.refuse
}

// quietPair is a link that runs, and a socket in the place of its peer.
type quietPair struct {
	t    *testing.T
	link *Link
	peer *net.UDPConn
	got  arrivals
	seq  uint64
	keys torus.Keyring
	end  func() // ends Run and waits for it
}

func newQuietPair(t *testing.T) *quietPair {
	t.Helper()
	a, b := pairOf(t)
	peer, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(b.cfg.Local))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	a.cfg.Resumed = true // it dials nobody
	link, err := Listen(a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &quietPair{t: t, link: link, peer: peer, got: arrivals{now: make(chan []byte, 16)}}
	p.keys.Add(time.Now(), torus.NewSession(7, [torus.KeySize]byte{1}, [torus.KeySize]byte{1}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- link.Run(ctx, &p.got) }()
	p.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.end)
	return p
}

// status is a heartbeat with a host word.
func status(host uint32) torus.Frame {
	return torus.Frame{Type: torus.TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Session: 7, Epoch: fault.Epoch(3), DNP: 1,
		Host: host}
}

func (p *quietPair) send(f torus.Frame) []byte {
	p.t.Helper()
	p.seq++
	f.Seq = p.seq
	b, err := f.Append(nil, &p.keys)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.peer.WriteToUDPAddrPort(b, p.link.LocalAddr()); err != nil {
		p.t.Fatal(err)
	}
	return b
}

// comesNow requires that a frame wakes the reader.
func (p *quietPair) comesNow(f torus.Frame) {
	p.t.Helper()
	want := p.send(f)
	select {
	case b := <-p.got.now:
		if !slices.Equal(b, want) {
			p.t.Fatalf("got %x, want %x", b, want)
		}
	case <-time.After(bound):
		p.t.Fatalf("%s frame with host word %d does not wake the reader", f.Type, f.Host)
	}
}

// arrived waits until all that was sent before has arrived: a kernel may deliver later than the call returns. The frame by
// which it knows has another status, so it wakes the reader.
func (p *quietPair) arrived() {
	p.t.Helper()
	p.comesNow(status(2))
}

// stamps waits until the kernel records when a heartbeat arrives. Just after the first socket of a machine asks for these times,
// the kernel may record when a heartbeat is read.
func (p *quietPair) stamps() {
	p.t.Helper()
	const age = time.Millisecond
	for began := time.Now(); time.Since(began) < bound; {
		p.known(status(1))
		p.send(status(1))
		p.arrived()
		p.link.ReadQuiet(time.Now().Add(age), &p.got)
		waited := p.got.waited
		p.link.quiet.readAt, p.got.quiet, p.got.waited = time.Time{}, nil, nil
		if len(waited) == 1 && waited[0] >= age {
			return
		}
	}
	p.t.Fatalf("the kernel records no arrivals within %s", bound)
}

// known tells the link of the peer's status, some time after the last change.
func (p *quietPair) known(f torus.Frame) {
	p.link.quiet.rest = time.Time{}
	p.link.Known(time.Now(), &f)
}

// A heartbeat that repeats the known status waits; another status, a message and a longer frame come at once.
func TestHeartbeatWithoutNewsWaits(t *testing.T) {
	p := newQuietPair(t)
	p.comesNow(status(1))
	p.known(status(1))
	first := p.send(status(1))
	second := p.send(status(1))
	p.comesNow(status(2)) // sent after the others: on loopback they have arrived
	message := status(1)
	message.Type, message.Payload = torus.TypeMessage, []byte("now")
	p.comesNow(message)
	dead := status(1)
	dead.Flags = torus.FlagHostDead
	p.comesNow(dead)
	p.link.ReadQuiet(time.Now(), &p.got)
	if len(p.got.quiet) != 2 || !slices.Equal(p.got.quiet[0], first) || !slices.Equal(p.got.quiet[1], second) {
		t.Fatalf("%d heartbeats waited, want the two that were sent, in order", len(p.got.quiet))
	}
	if s := p.link.Stats(); s.RxPackets != 6 || s.Dropped != 0 {
		t.Errorf("%+v, want 6 packets received", s)
	}
}

// A heartbeat is as old as its wait in the socket.
func TestQuietHeartbeatTellsItsAge(t *testing.T) {
	p := newQuietPair(t)
	p.stamps()
	p.known(status(1))
	p.link.ReadQuiet(time.Now(), &p.got)
	before := time.Now()
	p.send(status(1))
	p.arrived()
	after := time.Now()
	read := after.Add(40 * time.Millisecond)
	p.link.ReadQuiet(read, &p.got)
	if len(p.got.waited) != 1 {
		t.Fatalf("%d heartbeats, want 1", len(p.got.waited))
	}
	if w := p.got.waited[0]; w < read.Sub(after) || w > read.Sub(before) {
		t.Errorf("waited %s, want %s to %s", w, read.Sub(after), read.Sub(before))
	}
}

// A status that changes back within changeRest is news both times.
func TestStatusThatComesBackIsNews(t *testing.T) {
	p := newQuietPair(t)
	p.known(status(1))
	for _, host := range []uint32{2, 1, 2, 1} {
		p.comesNow(status(host))
		f := status(host)
		p.link.Known(time.Now(), &f)
	}
	p.known(status(1))
	p.send(status(1))
	p.comesNow(status(2))
	p.link.ReadQuiet(time.Now(), &p.got)
	if len(p.got.quiet) != 1 {
		t.Errorf("%d heartbeats waited, want 1: the status is known again", len(p.got.quiet))
	}
}

// Another peer's first heartbeat is news, even with the former one's status.
func TestNewPeersHeartbeatIsNews(t *testing.T) {
	p := newQuietPair(t)
	p.known(status(1))
	if err := p.link.SetPeer(grid.Coord{X: 1}, p.link.PeerAddr(), only("b")); err != nil {
		t.Fatal(err)
	}
	p.comesNow(status(1))
}

// A frame that asks for an answer comes at once, and its status lets nothing wait.
func TestAskNeverWaits(t *testing.T) {
	p := newQuietPair(t)
	ask := status(1)
	ask.Type = torus.TypeAsk
	p.known(ask)
	p.comesNow(status(1))
	p.known(status(1))
	p.comesNow(ask)
}

// A flood of heartbeats without news goes to the first socket, where the limits of the link apply; so do packets after a
// refused one.
func TestFloodDoesNotWait(t *testing.T) {
	for what, c := range map[string]struct {
		packets int
		refuse  bool
	}{"many": {quietMost + 1, false}, "forged": {1, true}} {
		t.Run(what, func(t *testing.T) {
			p := newQuietPair(t)
			p.known(status(1))
			for range c.packets {
				p.send(status(1))
			}
			p.got.refuse = c.refuse
			p.arrived()
			now := time.Now()
			p.link.ReadQuiet(now, &p.got)
			if len(p.got.quiet) != c.packets {
				t.Fatalf("%d heartbeats waited, want %d", len(p.got.quiet), c.packets)
			}
			f := status(1)
			p.comesNow(f)
			p.link.Known(now.Add(floodQuietRest-time.Millisecond), &f)
			p.comesNow(f)
			p.link.Known(now.Add(floodQuietRest), &f)
			p.send(f)
			p.comesNow(status(2))
			p.link.ReadQuiet(time.Now(), &p.got)
			if got := len(p.got.quiet) - c.packets; got != 1 {
				t.Errorf("%d heartbeats waited after the rest, want 1", got)
			}
		})
	}
}

// The kernel delivers the answer of a peer's kernel, that no socket is bound, to either socket of a link.
func TestRefusalAtEitherSocketIsHint(t *testing.T) {
	for i := range 10 { // the kernel chooses by a hash of the addresses
		var keys torus.Keyring
		keys.Add(time.Now(), torus.NewSession(7, [torus.KeySize]byte{1}, [torus.KeySize]byte{1}))
		a, _ := pairOf(t)
		a.cfg.Resumed = true
		link, err := Listen(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a.refusals = make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- link.Run(ctx, a) }()
		f := status(1)
		f.Seq = 1
		b, err := f.Append(nil, &keys)
		if err != nil {
			t.Fatal(err)
		}
		if err := link.Send(b); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.refusals:
		case <-time.After(bound):
			t.Errorf("link %d: no hint", i)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Where the kernel refuses the second socket, every heartbeat comes at once.
func TestRefusedPairLosesNothing(t *testing.T) {
	p := newQuietPair(t)
	p.link.quiet.mu.Lock()
	p.link.quiet.shut()
	p.link.quiet.mu.Unlock()
	p.known(status(1))
	p.comesNow(status(1))
	p.link.ReadQuiet(time.Now(), &p.got)
	if len(p.got.quiet) != 0 {
		t.Error("a heartbeat waited")
	}
}

// The count of packets that the kernel dropped stays when the sockets are closed.
func TestDroppedPacketsStayCountedAfterClose(t *testing.T) {
	p := newQuietPair(t)
	p.known(status(1))
	stranger, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	send := func(f torus.Frame, want uint64) {
		t.Helper()
		p.seq++
		f.Seq = p.seq
		b, err := f.Append(nil, &p.keys)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stranger.WriteToUDPAddrPort(b, p.link.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		p.arrived()
		p.known(status(1))
		if got := p.link.Stats().Dropped; got != want {
			t.Fatalf("%d packets dropped, want %d", got, want)
		}
	}
	send(status(1), 1) // at the second socket
	send(status(2), 2) // at the first one
	p.link.quiet.close()
	if got := p.link.Stats().Dropped; got != 2 {
		t.Errorf("%d packets dropped after the second socket was closed, want 2", got)
	}
	p.end()
	if got := p.link.Stats().Dropped; got != 2 {
		t.Errorf("%d packets dropped after the link was closed, want 2", got)
	}
}

// Injected faults apply to heartbeats that wait.
func TestFaultsReachQuietHeartbeats(t *testing.T) {
	p := newQuietPair(t)
	p.known(status(1))
	p.send(status(1))
	p.send(status(1))
	p.arrived()
	p.link.SetFaults(LinkFaults{BlockIn: true})
	p.link.ReadQuiet(time.Now(), &p.got)
	if len(p.got.quiet) != 0 || p.link.Stats().FaultedIn != 2 {
		t.Errorf("%d heartbeats passed a blocked link, %d dropped", len(p.got.quiet), p.link.Stats().FaultedIn)
	}
}

// Reading heartbeats that wait allocates nothing.
func TestReadQuietDoesNotAllocate(t *testing.T) {
	p := newQuietPair(t)
	p.known(status(1))
	var got counting
	b := p.send(status(1))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := p.peer.WriteToUDPAddrPort(b, p.link.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		p.link.ReadQuiet(time.Now(), &got)
	}); n != 0 {
		t.Errorf("%v allocations a heartbeat", n)
	}
	p.arrived()
	p.link.ReadQuiet(time.Now(), &got)
	if got < 100 {
		t.Errorf("%d heartbeats read", got)
	}
}

type counting int

func (c *counting) OnQuiet(grid.Direction, []byte, time.Duration) bool {
	*c++
	return true
}
