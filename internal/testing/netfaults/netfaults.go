// Package netfaults is a bad network for tests: a line that carries UDP datagrams between programs on this machine and
// loses, damages, doubles, delays and reorders them, in each direction as the test configures it.
//
//	clients ──► Addr() [ToTarget] ──► target
//	        ◄──        [FromTarget] ◄──
//
// udplink.Faults decides the fate of a datagram from a seed and from its position in its flow (one client's datagrams
// in one direction): the same datagrams in the same order have the same fate in every run, as long as their times do not
// matter. The target sees each client as an address of the line's own.
//
// It is for loopback and tests: it knows no bandwidth and no streams, and does not interpret its datagrams.
package netfaults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

const (
	// maxFlows bounds the clients of a line: each has a socket. Datagrams of more are lost.
	maxFlows = 256
	// maxDatagram is the longest that UDP takes, in bytes.
	maxDatagram = 65535
	// receiveBuffer is the requested buffer of every socket, in bytes: a line should lose only the datagrams that its
	// faults select.
	receiveBuffer = 4 << 20
)

// Direction is a direction of a line.
type Direction uint8

// The directions.
const (
	ToTarget Direction = iota + 1
	FromTarget
)

// String returns "to target" or "from target".
func (d Direction) String() string {
	switch d {
	case ToTarget:
		return "to target"
	case FromTarget:
		return "from target"
	default:
		return fmt.Sprintf("Direction(%d)", uint8(d))
	}
}

func (d Direction) valid() bool { return d == ToTarget || d == FromTarget }

// Counts has the datagrams of one direction by fate. At every moment Received + Doubled = Sent + Lost + Queued.
type Counts struct {
	Received, Sent     uint64
	Lost               uint64 // all causes: by Drop and Block, Overflow, Unsent
	Overflow, Unsent   uint64 // of these: no room on the line, or for another client; refused by the kernel
	Corrupted, Doubled uint64
	Overtaken          uint64 // held back for the next one
	Queued             uint64 // on their way
}

// Line carries datagrams. Its methods are safe for concurrent use.
type Line struct {
	front  *net.UDPConn // the clients'
	target netip.AddrPort
	seed   uint64
	wg     sync.WaitGroup // of the readers

	mu     sync.Mutex // guards the fields below and the flows, and keeps the order of sent datagrams
	closed bool
	side   map[Direction]*side
	flows  map[netip.AddrPort]*flow // by client
}

// side is one direction of all flows.
type side struct {
	faults udplink.Faults
	counts Counts
}

// flow is one client.
type flow struct {
	back *net.UDPConn // connected to the target
	way  map[Direction]*way
}

// way is one direction of one flow.
type way struct {
	lane  lane
	dice  *rand.Rand
	timer *time.Timer // runs when the lane has something that is not due
	send  func([]byte) error
}

// Listen begins to carry between clients on 127.0.0.1 and the target. The caller closes the Line.
func Listen(target netip.AddrPort, seed uint64) (*Line, error) {
	if !target.IsValid() || target.Port() == 0 {
		return nil, fmt.Errorf("bad network: target %s: want ip:port", target)
	}
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("bad network to %s: %w", target, err)
	}
	_ = front.SetReadBuffer(receiveBuffer) // best effort: the kernel's limit may be lower
	l := &Line{
		front: front, target: target, seed: seed,
		side: map[Direction]*side{ToTarget: {}, FromTarget: {}}, flows: map[netip.AddrPort]*flow{},
	}
	l.wg.Go(l.readClients)
	return l, nil
}

// Addr is the address for clients, in place of the target's.
func (l *Line) Addr() netip.AddrPort { return l.front.LocalAddr().(*net.UDPAddr).AddrPort() }

// Set sets the faults of a direction for new datagrams. Those in transit are not affected.
func (l *Line) Set(d Direction, f udplink.Faults) error {
	if !d.valid() {
		return fmt.Errorf("bad network: direction %s: want to target or from target", d)
	}
	if err := f.Validate(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.side[d].faults = f
	return nil
}

// Counts returns the counts of a direction so far.
func (l *Line) Counts(d Direction) Counts {
	if !d.valid() {
		return Counts{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.side[d].counts
	for _, f := range l.flows {
		c.Queued += uint64(len(f.way[d].lane.queue))
	}
	return c
}

// Close ends the line. Datagrams in transit are lost.
func (l *Line) Close() error {
	l.mu.Lock()
	l.closed = true
	errs := []error{l.front.Close()}
	for _, f := range l.flows {
		errs = append(errs, f.back.Close())
		for _, w := range f.way {
			w.timer.Stop() // one that runs already finds the line closed
		}
	}
	l.mu.Unlock()
	l.wg.Wait()
	return errors.Join(errs...)
}

func (l *Line) readClients() {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := l.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed: no other error ends an unconnected socket
		}
		l.fromClient(from, append([]byte(nil), buf[:n]...))
	}
}

func (l *Line) fromClient(from netip.AddrPort, b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	f, err := l.flowOf(from)
	if err != nil {
		c := &l.side[ToTarget].counts
		c.Received++
		c.Lost++
		c.Overflow++
		return
	}
	l.carry(f.way[ToTarget], ToTarget, b)
}

// flowOf finds or begins the flow of a client. l.mu is held.
func (l *Line) flowOf(client netip.AddrPort) (*flow, error) {
	if f, ok := l.flows[client]; ok {
		return f, nil
	}
	if len(l.flows) >= maxFlows {
		return nil, errors.New("too many clients")
	}
	back, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.target))
	if err != nil {
		return nil, err
	}
	_ = back.SetReadBuffer(receiveBuffer) // best effort
	f := &flow{back: back, way: map[Direction]*way{
		ToTarget: {send: func(b []byte) error { return write(back, b) }},
		FromTarget: {send: func(b []byte) error {
			_, err := l.front.WriteToUDPAddrPort(b, client)
			return err
		}},
	}}
	for d, w := range f.way {
		//nolint:gosec // a test wants to be repeated, not to keep a secret
		w.dice = rand.New(rand.NewPCG(l.seed, uint64(len(l.flows))<<8|uint64(d)))
		w.timer = time.AfterFunc(time.Hour, func() { l.onTimer(w, d) })
		w.timer.Stop()
	}
	l.flows[client] = f
	l.wg.Go(func() { l.readTarget(f) })
	return f, nil
}

// write sends on a connected socket, which first reports the refusal of an earlier datagram.
func write(c *net.UDPConn, b []byte) error {
	_, err := c.Write(b)
	if errors.Is(err, syscall.ECONNREFUSED) {
		_, err = c.Write(b)
	}
	return err
}

func (l *Line) readTarget(f *flow) {
	buf := make([]byte, maxDatagram)
	for {
		n, err := f.back.Read(buf)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			continue // no program listens at the target just now
		case err != nil:
			return // closed
		}
		l.mu.Lock()
		if !l.closed {
			l.carry(f.way[FromTarget], FromTarget, append([]byte(nil), buf[:n]...))
		}
		l.mu.Unlock()
	}
}

// carry takes a datagram on the way. It owns b. l.mu is held.
func (l *Line) carry(w *way, d Direction, b []byte) {
	s := l.side[d]
	c := &s.counts
	c.Received++
	fate := s.faults.Fate(w.dice, len(b))
	if fate.Lost {
		c.Lost++
		return
	}
	if fate.Corrupted {
		c.Corrupted++
		fate.Flip(b)
	}
	if fate.Copies > 1 {
		c.Doubled++
	}
	if fate.Overtaken {
		c.Overtaken++
	}
	now := time.Now()
	over := uint64(w.lane.add(now, fate, s.faults.Jitter > 0, b))
	c.Overflow += over
	c.Lost += over
	l.deliver(w, d, now)
}

func (l *Line) onTimer(w *way, d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.deliver(w, d, time.Now())
	}
}

// deliver sends due datagrams and sets the timer for the rest. l.mu is held.
func (l *Line) deliver(w *way, d Direction, now time.Time) {
	c := &l.side[d].counts
	for _, b := range w.lane.take(now) {
		if err := w.send(b); err != nil {
			c.Unsent++
			c.Lost++
			continue
		}
		c.Sent++
	}
	if at, ok := w.lane.wake(); ok {
		w.timer.Reset(at.Sub(now))
	}
}
