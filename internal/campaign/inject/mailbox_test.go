package inject

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// headerBytes is the part of a message's payload that counts as its headers: the relay header and the fields around it.
const headerBytes = 48

// mailboxMessages returns the messages to damage.
func mailboxMessages(t *testing.T) []mailbox.Message {
	t.Helper()
	mail, err := half.AppendMail(nil, 1, halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9,
		Hops: []halfcore.RelayHop{{Coord: grid.Coord{X: 1}, Half: fault.HalfDNP}}, Envelope: bytes.Repeat([]byte{0x5a, 3}, 300)})
	if err != nil {
		t.Fatal(err)
	}
	record, err := halfcore.RecoveryRecord{Half: fault.HalfDNP, State: halfcore.Running, PID: 4711}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return []mailbox.Message{{Type: mailbox.Doorbell}, {Type: mailbox.Envelope, Payload: mail}, {Type: mailbox.Recovery, Payload: record}}
}

// postbox is a real mailbox with its received messages, and a socket to send damaged ones.
type postbox struct {
	box  *mailbox.Box
	to   *net.UnixConn
	came chan mailbox.Message
}

func newPostbox(t *testing.T) *postbox {
	t.Helper()
	dir := agenttest.Dir(t)
	box, err := mailbox.Open(dir, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	p := &postbox{box: box, came: make(chan mailbox.Message, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- box.Run(ctx, func(m mailbox.Message) { p.came <- m }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = box.Close()
	})
	p.to, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: filepath.Join(dir, "dnp.mbox"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.to.Close() })
	return p
}

// put sends a datagram unchanged, and returns the received message, or refused if the mailbox rejected it.
func (p *postbox) put(t *testing.T, b []byte) (got mailbox.Message, refused bool) {
	t.Helper()
	bad := p.box.Stats().Bad
	if _, err := p.to.Write(b); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		select {
		case m := <-p.came:
			return m, false
		case <-time.After(50 * time.Microsecond):
			if p.box.Stats().Bad > bad {
				return got, true
			}
			if time.Now().After(deadline) {
				t.Fatalf("a datagram of %d bytes neither came out nor was refused", len(b))
			}
		}
	}
}

// TestMailboxHeaders flips every bit of the headers of mailbox messages, and pairs of bits, on the way through a real
// mailbox: no message arrives altered.
func TestMailboxHeaders(t *testing.T) {
	doubles := 300
	if *full {
		doubles = 6000
	}
	runClass(t, "mailbox headers, flips", func(c *class) { mailboxClass(t, c, doubles) })
}

func mailboxClass(t *testing.T, c *class, doubles int) {
	p := newPostbox(t)
	r := rand.New(rand.NewPCG(*seed, 77))
	for _, m := range mailboxMessages(t) {
		b, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		var bits []int
		for i := range b {
			if i <= headerBytes || i >= len(b)-4 {
				for j := range 8 {
					bits = append(bits, i*8+j)
				}
			}
		}
		try := func(flips ...int) {
			begin := time.Now()
			s := sample{what: fmt.Sprintf("%s, bits %v", m.Type, flips), applied: true, touched: true, healed: true, category: catMailbox}
			d := bytes.Clone(b)
			for _, f := range flips {
				d[f/8] ^= 1 << (f % 8)
			}
			got, refused := p.put(t, d)
			switch {
			case refused:
				s.ours, s.detect, s.recover = byGuard, time.Since(begin), time.Since(begin)
			case got.Type != m.Type || !bytes.Equal(got.Payload, m.Payload):
				s.prober = true
				s.what += ": came out as " + got.Type.String()
			}
			c.add(s)
		}
		for _, f := range bits {
			try(f)
		}
		for range doubles / 3 {
			a, b := r.IntN(len(bits)), r.IntN(len(bits)-1)
			if b >= a {
				b++
			}
			try(bits[a], bits[b])
		}
	}
}
