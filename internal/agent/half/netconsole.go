package half

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
	"github.com/lofamo/lofamo/pkg/udpguard"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// wordsSettle is the time for the lines behind an error to arrive: a kernel sends all lines of a panic within 10 ms.
const wordsSettle = 50 * time.Millisecond

// netconsoleComplain is the least time between two warnings about lines that are left out.
const netconsoleComplain = time.Minute

// The receiver reads netconsoleRate datagrams a second, after a burst of netconsoleBurst, without a rest. It rests for 1 ms after each
// further one, so it reads at most some 1,500 a second: see udpguard.Pace. A panic has some 40 lines, each in a datagram. In a flood the
// kernel admits about netconsoleStrangers datagrams a second from strangers, enough for the warning.
const (
	netconsoleRate      = 500
	netconsoleBurst     = 1000
	netconsoleStrangers = 10
)

// NetconsoleSenders are the accepted senders of netconsole's lines. Any goroutine may use them.
type NetconsoleSenders struct {
	nodes atomic.Pointer[map[netip.Addr]fault.NodeID]
	guard *udpguard.Guard
}

// NewNetconsoleSenders returns an empty set.
func NewNetconsoleSenders() *NetconsoleSenders {
	s := &NetconsoleSenders{guard: udpguard.New(netconsoleStrangers, udpguard.AnyPort)}
	s.Set(nil)
	return s
}

// Set replaces the senders. The caller must not change the map later.
func (s *NetconsoleSenders) Set(nodes map[netip.Addr]fault.NodeID) {
	known := make([]netip.AddrPort, 0, len(nodes))
	for a := range nodes {
		known = append(known, netip.AddrPortFrom(a, 0))
	}
	s.nodes.Store(&nodes)
	s.guard.Know(known)
}

// Node returns the node of a sender.
func (s *NetconsoleSenders) Node(a netip.Addr) (fault.NodeID, bool) {
	node, ok := (*s.nodes.Load())[a]
	return node, ok
}

// SetSenders replaces the accepted netconsole senders by those of cfg, which includes the supervisors' orders. Any goroutine may call it.
func (c *Common) SetSenders(cfg config.Agent) { c.Senders.Set(cfg.NetconsoleSenders(c.Half)) }

// netconsoleRetry is the pause before another attempt to open the socket. Its address may appear after the half starts, and may disappear.
const netconsoleRetry = 2 * time.Second

// ReceiveNetconsole receives the last lines of other machines' kernels until ctx ends, and calls found with new last words. The half can
// run without the socket, so ReceiveNetconsole retries if it cannot open the socket.
func (c *Common) ReceiveNetconsole(ctx context.Context, found func([]*lofamov1.LastWords)) {
	core, failing := halfcore.NewNetconsole(nil, rand.Uint32()), Condition{}
	defer c.Senders.guard.Close()
	c.Senders.guard.OnFailure(func(err error) { c.Log.Warn("the kernel does not filter netconsole's strangers", "err", err) })
	pace := udpguard.NewPace(netconsoleRate, netconsoleBurst, udpguard.FloodRest)
	for {
		udp, err := c.listenNetconsole(ctx)
		if err == nil {
			failing.Set(c.Log, "receive netconsole", nil)
			stop := context.AfterFunc(ctx, func() { _ = udp.Close() })
			err = c.netconsole(udp, core, pace, found)
			stop()
			_ = udp.Close()
		}
		if ctx.Err() != nil {
			return
		}
		failing.Set(c.Log, "receive netconsole", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(netconsoleRetry):
		}
	}
}

func (c *Common) listenNetconsole(ctx context.Context) (*net.UDPConn, error) {
	listen := net.ListenConfig{}
	if c.Half == fault.HalfDNP {
		listen.Control = udplink.BindTo(c.Config.Window.Interface) // only its own host can send by that
	}
	conn, err := listen.ListenPacket(ctx, "udp", c.Config.Netconsole.Listen)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil //nolint:forcetypeassert // the network is udp
}

// netconsole reads datagrams until the socket fails.
func (c *Common) netconsole(udp *net.UDPConn, core *halfcore.Netconsole, pace *udpguard.Pace, found func([]*lofamov1.LastWords)) error {
	return readNetconsole(udp, core, c.Senders, pace, func(words []*lofamov1.LastWords) {
		c.Log.Warn("kernel error of another machine received by netconsole", "node", words[0].GetNode(), "from", words[0].GetFrom(),
			"line", words[0].GetLine())
		found(words)
	}, func(n halfcore.NetconsoleCounts) {
		c.Log.Warn("lines of netconsole were left out", "strangers", n.Strangers, "flooded", n.Flooded, "cut", n.Cut, "malformed", n.Malformed,
			"taken", n.Lines)
	})
}

// readNetconsole reads datagrams of the present senders until the socket fails. It calls found with new last words once the lines behind
// them have had time to arrive, and left, at most once in netconsoleComplain, when the core has left out more.
func readNetconsole(udp *net.UDPConn, core *halfcore.Netconsole, senders *NetconsoleSenders, pace *udpguard.Pace,
	found func([]*lofamov1.LastWords), left func(halfcore.NetconsoleCounts)) error {
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	senders.guard.Guard(raw)
	defer senders.guard.Guard(nil)
	var known *map[netip.Addr]fault.NodeID
	var due, complained time.Time
	var was halfcore.NetconsoleCounts
	buf := make([]byte, 2048) // a datagram of netconsole has 1000 bytes at most
	for {
		if err := udp.SetReadDeadline(due); err != nil {
			return fmt.Errorf("set deadline: %w", err)
		}
		n, from, err := udp.ReadFromUDPAddrPort(buf)
		now := time.Now()
		if is := senders.nodes.Load(); is != known {
			known = is
			core.SetSenders(*is)
		}
		switch {
		case err == nil:
			senders.guard.Admit(now, from) // only for the kernel's filter: the core counts and refuses strangers
			if core.Packet(now, from.Addr(), buf[:n]) && due.IsZero() {
				due = now.Add(wordsSettle)
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if !due.IsZero() && !now.Before(due) {
			due = time.Time{}
			if words := core.Words(now); len(words) > 0 {
				found(words)
			}
		}
		is := core.Counts()
		is.Lines, was.Lines = 0, 0
		if is != was && (complained.IsZero() || now.Sub(complained) >= netconsoleComplain) {
			complained, was = now, is
			left(core.Counts())
		}
		if err == nil {
			pace.Take()
		}
	}
}
