package ingest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

type fixedSigner struct{}

func (fixedSigner) Cert() []byte       { return []byte("certificate") }
func (fixedSigner) Sign([]byte) []byte { return bytes.Repeat([]byte{1}, 64) }

// sent records the sent messages, in order.
type sent chan *lofamov1.Message

func (s sent) Send(_ netip.AddrPort, b []byte) error {
	env, msg := &lofamov1.Envelope{}, &lofamov1.Message{}
	if err := proto.Unmarshal(b, env); err != nil {
		return err
	}
	if err := proto.Unmarshal(env.GetPayload(), msg); err != nil {
		return err
	}
	s <- msg
	return nil
}

// TestChallengesGoBeforeAcks: the time for an answer runs from the moment that the machine asks, so a
// flood of reports to acknowledge must not make a healthy node late.
func TestChallengesGoBeforeAcks(t *testing.T) {
	const acks = 1000
	out := make(sent, acks+1)
	nodes := addresses{"accused": {netip.MustParseAddrPort("127.0.0.1:3")}}
	for i := range acks {
		nodes[fault.NodeID(fmt.Sprint("n", i))] = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:2")}
	}
	s := NewSender(SenderConfig{
		Ports: []Port{{Socket: out, ReplyTo: "127.0.0.1:1"}}, Leader: func() string { return "sup-0" },
		NoQuorum: func() time.Duration { return 0 }, Signer: fixedSigner{},
		Nodes: nodes, Paths: NewExchanges(ExchangeConfig{ID: "sup-0", Metrics: metrics.New(prometheus.NewRegistry())}),
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	for i := range acks {
		s.Answer(engine.To{}, &lofamov1.Ack{
			Status: lofamov1.Ack_COMMITTED, Node: fmt.Sprint("n", i), Half: lofamov1.Half_HALF_HOST, Epoch: 1, Seqs: []uint64{1},
		})
	}
	s.Challenge(awareness.Challenge{Node: "accused", Nonce: [16]byte{1}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { stop(); <-done }()
	for i := range acks + 1 {
		select {
		case m := <-out:
			if challenge := m.GetChallenge() != nil; challenge != (i == 0) {
				t.Fatalf("message %d is a challenge: %t", i, challenge)
			}
		case <-time.After(wait):
			t.Fatalf("only %d messages were sent", i)
		}
	}
}

// countingSigner counts signatures; its certificate may change.
type countingSigner struct {
	fixedSigner
	cert  []byte
	signs int
}

func (c *countingSigner) Cert() []byte         { return c.cert }
func (c *countingSigner) Sign(b []byte) []byte { c.signs++; return c.fixedSigner.Sign(b) }

// TestDenyPartIsSignedOnceForAllNodes: a part of the list of revoked certificates goes to all nodes under one
// signature, until the certificate is renewed.
func TestDenyPartIsSignedOnceForAllNodes(t *testing.T) {
	const count = 100
	out := make(sent, 4*count)
	nodes := addresses{}
	for i := range count {
		nodes[fault.NodeID(fmt.Sprint("n", i))] = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:2")}
	}
	signer := &countingSigner{cert: []byte("first")}
	s := NewSender(SenderConfig{
		Ports: []Port{{Socket: out, ReplyTo: "127.0.0.1:1"}}, Leader: func() string { return "" }, NoQuorum: func() time.Duration { return 0 },
		Signer: signer,
		Nodes:  nodes, Paths: NewExchanges(ExchangeConfig{ID: "sup-0", Metrics: metrics.New(prometheus.NewRegistry())}),
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	parts := []*lofamov1.DenyPart{{Version: 1, Parts: 2, Data: []byte("a")}, {Version: 1, Part: 1, Parts: 2, Data: []byte("b")}}
	for round, cert := range []string{"first", "renewed"} {
		signer.cert = []byte(cert)
		for id := range nodes {
			for _, p := range parts {
				s.Deny(id, p)
				if m := <-out; !proto.Equal(m.GetDenyPart(), p) {
					t.Fatalf("%v was sent: want %v", m, p)
				}
			}
		}
		if want := (round + 1) * len(parts); signer.signs != want {
			t.Errorf("%d signatures for %d nodes under certificate %q: want %d", signer.signs, count, cert, want)
		}
	}
}

// TestRequestToResendIsOfRenewedCertificate: agents refuse a request under a certificate that has expired.
func TestRequestToResendIsOfRenewedCertificate(t *testing.T) {
	w := &wire{more: make(chan struct{}, 1)}
	signer := &countingSigner{cert: []byte("first")}
	s := NewSender(SenderConfig{
		Ports: []Port{{Socket: wireSocket{w, 0}, ReplyTo: "127.0.0.1:1"}}, Signer: signer,
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	for round, cert := range []string{"first", "renewed"} {
		signer.cert = []byte(cert)
		for range 2 {
			s.Again(Place{Addr: netip.MustParseAddrPort("127.0.0.1:2")})
			list := w.sent()
			env := &lofamov1.Envelope{}
			if err := proto.Unmarshal(list[len(list)-1].data, env); err != nil || string(env.GetCertificate()) != cert {
				t.Errorf("sealed under certificate %q, %v: want %q", env.GetCertificate(), err, cert)
			}
		}
		if signer.signs != round+1 {
			t.Errorf("%d signatures under %d certificates", signer.signs, round+1)
		}
	}
}

// gate is a socket that announces each send and waits for permission.
type gate struct{ ready, may chan struct{} }

func (g gate) Send(netip.AddrPort, []byte) error {
	g.ready <- struct{}{}
	<-g.may
	return nil
}

// TestSenderReportsItsDelay: the machine waits longer for answers to delayed challenges.
func TestSenderReportsItsDelay(t *testing.T) {
	g := gate{make(chan struct{}), make(chan struct{})}
	m := metrics.New(prometheus.NewRegistry())
	s := NewSender(SenderConfig{
		Ports: []Port{{Socket: g, ReplyTo: "127.0.0.1:1"}}, Leader: func() string { return "sup-0" }, Signer: fixedSigner{},
		Nodes: addresses{"accused": {netip.MustParseAddrPort("127.0.0.1:3")}}, Paths: NewExchanges(ExchangeConfig{ID: "sup-0", Metrics: m}),
		Metrics: m, Logger: slog.New(slog.DiscardHandler),
	})
	for i := range 3 {
		s.Challenge(awareness.Challenge{Node: "accused", Nonce: [16]byte{byte(i)}})
	}
	put := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { stop(); <-done }()
	var waited time.Duration // until the one before might go
	for i := range 3 {
		select {
		case <-g.ready:
		case <-time.After(wait):
			t.Fatalf("only %d challenges are sent", i)
		}
		switch got := s.Behind(); {
		case i == 1 && got < waited:
			t.Errorf("behind by %s with one that waits; the one before waited %s", got, waited)
		case i == 2 && got != 0:
			t.Errorf("behind by %s with none that waits", got)
		}
		waited = time.Since(put)
		g.may <- struct{}{}
	}
}
