// Package direct is the direct rail: datagrams on one UDP socket, between an agent and a
// supervisor or back. It carries marshalled envelopes and knows nothing of what is in them; what
// is lost, the outbox sends again.
package direct

import (
	"context"
	"net/netip"
)

// Options of a socket.
type Options struct {
	Interface string // bind to this network interface; empty: any
}

// Handler gets each datagram. It is called from one goroutine, must not block and must not keep b.
type Handler func(from netip.AddrPort, b []byte)

// Socket is one UDP socket. All methods may be called from any goroutine.
type Socket struct{}

// Listen opens the socket on addr ("ip:port"; port 0 takes a free one).
func Listen(addr string, opts Options) (*Socket, error) { panic("skeleton") }

// LocalAddr returns the address that the socket is bound to.
func (s *Socket) LocalAddr() netip.AddrPort { panic("skeleton") }

// Send sends one datagram without blocking.
func (s *Socket) Send(to netip.AddrPort, b []byte) error { panic("skeleton") }

// Run reads until the context ends or the socket is closed. It closes the socket.
func (s *Socket) Run(ctx context.Context, h Handler) error { panic("skeleton") }

// Block makes the socket drop everything both ways, for fault injection.
func (s *Socket) Block(on bool) { panic("skeleton") }

// Stats counts datagrams.
type Stats struct {
	Received, Sent, Oversized, Blocked, SendErrors uint64
}

// Stats returns the counters.
func (s *Socket) Stats() Stats { panic("skeleton") }

// Close closes the socket; Run returns.
func (s *Socket) Close() error { panic("skeleton") }
