package ingest

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// refusing is a sender on a real socket, with the refused challenges that it passes on.
type refusing struct {
	*Sender
	refused chan awareness.Refused
}

// newRefusing runs a sender to the given nodes.
func newRefusing(t *testing.T, nodes addresses) refusing {
	t.Helper()
	r := refusing{refused: make(chan awareness.Refused, 64)}
	socket, err := direct.Listen("127.0.0.1:0", direct.Options{OnRefused: func(to netip.AddrPort, quote []byte) bool {
		s := r.Sender // made below
		return s.Refused(to, quote)
	}})
	if err != nil {
		t.Fatal(err)
	}
	m := metrics.New(prometheus.NewRegistry())
	r.Sender = NewSender(SenderConfig{
		Ports: []Port{{Socket: socket, ReplyTo: "127.0.0.1:1"}}, Leader: func() string { return "sup-0" },
		NoQuorum: func() time.Duration { return 0 }, Signer: fixedSigner{}, Nodes: nodes,
		Paths: NewExchanges(ExchangeConfig{ID: "sup-0", Metrics: m}), Refused: func(c awareness.Refused) { r.refused <- c },
		Metrics: m, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	read, sent := make(chan error, 1), make(chan struct{})
	go func() { read <- socket.Run(ctx, func(netip.AddrPort, []byte) {}) }()
	go func() { r.Run(ctx); close(sent) }()
	t.Cleanup(func() {
		stop()
		<-sent
		if err := <-read; err != nil {
			t.Error(err)
		}
	})
	return r
}

// next returns the next refused challenge.
func (r refusing) next(t *testing.T) awareness.Refused {
	t.Helper()
	select {
	case c := <-r.refused:
		return c
	case <-time.After(wait):
		t.Fatal("no refused challenge")
		return awareness.Refused{}
	}
}

// openAndClosed returns a loopback address at which a socket listens, and one without.
func openAndClosed(t *testing.T) (open, closed netip.AddrPort) {
	t.Helper()
	s, err := direct.Listen(freeport.Addr(t).String(), direct.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.LocalAddr(), freeport.Addr(t)
}

// TestRefusedChallengeIsPassedOn sends challenges to a kernel that refuses them. Only those count that went straight,
// and only when every address of the node has refused.
func TestRefusedChallengeIsPassedOn(t *testing.T) {
	open, closed := openAndClosed(t)
	_, other := openAndClosed(t)
	r := newRefusing(t, addresses{"ended": {closed}, "both": {closed, other}, "one": {closed, open}, "lives": {open}})
	nonce := byte(0)
	ask := func(node fault.NodeID, again bool) awareness.Refused {
		nonce++
		c := awareness.Challenge{Node: node, Nonce: [16]byte{nonce, 0xaa}, Again: again}
		if !r.Challenge(c) {
			t.Fatal("challenge dropped")
		}
		return awareness.Refused{Node: node, Nonce: c.Nonce}
	}
	for _, tc := range []struct {
		name   string
		node   fault.NodeID
		again  bool
		passes bool
	}{
		{"a node that lives", "lives", true, false},
		{"one of two addresses", "one", true, false},
		{"a challenge that others forward too", "ended", false, false},
		{"the only address", "ended", true, true},
		{"both addresses", "both", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := ask(tc.node, tc.again)
			if !tc.passes {
				want = ask("ended", true) // its refusal comes after those of the first
			}
			if got := r.next(t); got != want {
				t.Errorf("refused %v, want %v", got, want)
			}
		})
	}
	// Waiting acks would stand before the nonce, so a challenge that goes straight only carries none.
	r.Answer(engine.To{}, &lofamov1.Ack{
		Status: lofamov1.Ack_COMMITTED, Node: "ended", Half: lofamov1.Half_HALF_HOST, Epoch: 1, Seqs: []uint64{1},
	})
	if want, got := ask("ended", true), r.next(t); got != want {
		t.Errorf("with acks: refused %v, want %v", got, want)
	}
}

// TestForgedRefusalIsStrange gives the sender answers that a stranger or a neighbour could forge.
func TestForgedRefusalIsStrange(t *testing.T) {
	open, _ := openAndClosed(t)
	r := newRefusing(t, addresses{"n0": {open}, "n1": {open}})
	asked := awareness.Challenge{Node: "n0", Nonce: [16]byte{1}, Again: true}
	forwarded := awareness.Challenge{Node: "n0", Nonce: [16]byte{2}}
	quote := func(c awareness.Challenge) []byte {
		b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
			Nonce: c.Nonce[:], Node: string(c.Node), ReplyTo: "127.0.0.1:1",
		}}}, fixedSigner{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []awareness.Challenge{asked, forwarded} {
		r.asked.note(time.Now(), c.Nonce)
	}
	r.asked.straight("n0", asked.Nonce, []Place{{Addr: open}})
	whole := quote(asked)
	down, err := servicenet.SealDowncall("n0", whole, fixedSigner{})
	if err != nil {
		t.Fatal(err)
	}
	stranger := netip.MustParseAddrPort("127.0.0.1:9")
	for _, tc := range []struct {
		name  string
		to    netip.AddrPort
		quote []byte
	}{
		{"nothing", open, nil},
		{"zeros", open, make([]byte, direct.QuoteSize)},
		{"a guessed nonce", open, quote(awareness.Challenge{Node: "n0", Nonce: [16]byte{3}})},
		{"a challenge that neighbours forward", open, quote(forwarded)},
		{"another address", stranger, whole},
		{"a neighbour's copy", open, down},
		{"only the beginning of the nonce", open, whole[:20]},
		{"the nonce without its envelope", open, asked.Nonce[:]},
	} {
		if r.Refused(tc.to, tc.quote) {
			t.Errorf("%s counts as a refusal", tc.name)
		}
	}
	if !r.Refused(open, whole[:direct.QuoteSize]) {
		t.Error("the true quotation does not count")
	}
	if r.Refused(open, whole[:direct.QuoteSize]) {
		t.Error("a quotation counts twice")
	}
	if want, got := (awareness.Refused{Node: "n0", Nonce: asked.Nonce}), r.next(t); got != want || len(r.refused) > 0 {
		t.Errorf("passed on %v and %d more: want %v", got, len(r.refused), want)
	}
}

// FuzzQuotedNonce: a quotation comes from anybody.
func FuzzQuotedNonce(f *testing.F) {
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: make([]byte, 16), Node: "n0", ReplyTo: "127.0.0.1:1",
	}}}, fixedSigner{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:direct.QuoteSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		nonce, ok := quotedNonce(b)
		if whole, found := quotedNonce(append(b, 0)); ok && (!found || whole != nonce) {
			t.Errorf("nonce %x of %x, and with one more byte %x, %t", nonce, b, whole, found)
		}
	})
}
