package half

import (
	"context"
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/railtest"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/testing/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Main(m.Run)) }

const hops = 9

func TestTorusRailKeepsRailContract(t *testing.T) {
	railtest.Run(t, func(t *testing.T) railtest.Harness {
		dir := t.TempDir()
		host, dnp := open(t, dir, fault.HalfHost), open(t, dir, fault.HalfDNP)
		return railtest.Harness{
			Rail: NewTorusRail(host, hops), Target: "s0", Limit: halfcore.MaxRelayEnvelope,
			Read: func(deliver func([]byte)) {
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- dnp.Run(ctx, func(m mailbox.Message) { deliver(envelopeOf(t, m)) }) }()
				t.Cleanup(func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			},
			Refused: func() uint64 { return host.Stats().DroppedFull },
			Lost:    func() uint64 { return dnp.Stats().Bad },
			Close:   func() { _ = host.Close() },
		}
	})
}

// envelopeOf reads a message as the DNP half does.
func envelopeOf(t *testing.T, mail mailbox.Message) []byte {
	m, held, err := ReadMail(mail.Payload, Monotonic())
	if err != nil || mail.Type != mailbox.Envelope || m.Kind != halfcore.RelayUp || m.Limit != hops || m.Made != 0 || held > time.Minute {
		t.Errorf("%s: %s, %d of %d hops, held %s, %v", mail.Type, m.Kind, m.Made, m.Limit, held, err)
	}
	return m.Envelope
}

func open(t *testing.T, dir string, half fault.Half) *mailbox.Box {
	t.Helper()
	b, err := mailbox.Open(dir, half)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestMessageWithoutDNPHalfFails(t *testing.T) {
	host := open(t, t.TempDir(), fault.HalfHost)
	err := NewTorusRail(host, hops).Send("s0", []byte("report"))
	if !errors.Is(err, mailbox.ErrAbsent) || errors.Is(err, servicenet.ErrBusy) || host.Stats().DroppedAbsent != 1 {
		t.Errorf("got %v, %+v", err, host.Stats())
	}
}

// A message that lay in the mailbox while this half was stopped carries that time.
func TestMailCarriesItsTimeInMailbox(t *testing.T) {
	m := halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9, Hops: []halfcore.RelayHop{{Half: fault.HalfDNP}}, Envelope: []byte("report")}
	sent := int64(5 * time.Second)
	b, err := AppendMail(nil, sent, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		now  int64
		want time.Duration
	}{
		{sent, 0},
		{sent + int64(time.Minute), time.Minute},
		{sent - 1, 0}, // garbled, or forged
		{math.MaxInt64, halfcore.MaxRelayHeld},
	} {
		got, held, err := ReadMail(b, tc.now)
		if err != nil || held != tc.want {
			t.Errorf("at %d: held %s, %v; want %s", tc.now, held, err, tc.want)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Error(d)
		}
	}
	for n := range b[:len(b)-len(m.Envelope)] {
		if _, _, err := ReadMail(b[:n], sent); err == nil {
			t.Errorf("the first %d bytes are read as a message", n)
		}
	}
}
