//go:build lofamo_failpoint

package failpoint

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Gate is a place where points armed with Hold wait, in this process or in another. A test learns from it that a point
// was reached, and decides when it continues. So no test needs to poll or to guess durations.
type Gate struct {
	dir string
	l   net.Listener
}

// NewGate returns a gate that the caller must close. Its path is short, because the kernel limits the names of sockets.
func NewGate() (*Gate, error) {
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return nil, fmt.Errorf("gate: %w, %w", err, os.Remove(dir))
	}
	return &Gate{dir, l}, nil
}

// Order returns an order that holds a point at this gate, once.
func (g *Gate) Order(p Point, skip int) Order {
	return Order{Point: p, Action: Hold.String(), Skip: skip, Gate: g.l.Addr().String()}
}

// Reached waits until a point waits here. The point continues when release is called, which may be repeated, or when
// this process ends.
func (g *Gate) Reached(within time.Duration) (p Point, release func(), err error) {
	if err := g.l.(*net.UnixListener).SetDeadline(time.Now().Add(within)); err != nil {
		return "", nil, err
	}
	c, err := g.l.Accept()
	if err != nil {
		return "", nil, fmt.Errorf("no point was reached: %w", err)
	}
	name, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", nil, fmt.Errorf("a point was reached, and its process has ended: %w, %w", err, c.Close())
	}
	return Point(strings.TrimSuffix(name, "\n")), sync.OnceFunc(func() { _ = c.Close() }), nil
}

// Close closes the gate. Points that were released already are not affected.
func (g *Gate) Close() error {
	err := g.l.Close()
	_ = os.RemoveAll(g.dir)
	return err
}

// hold waits at a gate.
func hold(p Point, gate string) {
	c, err := net.Dial("unix", gate)
	if err != nil {
		panic(fmt.Sprintf("failpoint %s: there is no gate: %v", p, err))
	}
	_, _ = fmt.Fprintln(c, p)
	_, _ = io.Copy(io.Discard, c)
	_ = c.Close()
}
