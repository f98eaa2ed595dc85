package half

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// TestMessageCrossesKernelsWithItsAge: the clocks of the two kernels differ by their uptimes. The host sees the same age of a report
// as the card: 0 for a new report, and the delay for one that waited. Times in a recovery record are converted too.
func TestMessageCrossesKernelsWithItsAge(t *testing.T) {
	for name, apart := range map[string]time.Duration{
		"the card has booted earlier": 30 * 24 * time.Hour, "the card has booted later": -time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			hostCfg, cardCfg := windowHalves(t)
			host, card := openEnd(t, hostCfg, fault.HalfHost), openEnd(t, cardCfg, fault.HalfDNP)
			await(t, "the card's words", func() bool {
				_, s, err := host.own.File.TakeDNP()
				return err == nil && s.Valid
			}, host, card)
			box := open(t, host.common.Config.StateDir, fault.HalfHost)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			came := make(chan mailbox.Message, 8)
			done := make(chan error, 1)
			go func() {
				done <- box.Run(ctx, func(m mailbox.Message) {
					if m.Type != mailbox.Doorbell {
						m.Payload = bytes.Clone(m.Payload)
						came <- m
					}
				})
			}()
			next := func() mailbox.Message {
				select {
				case m := <-came:
					return m
				case <-ctx.Done():
					t.Fatal("no message")
				}
				return mailbox.Message{}
			}
			for _, waited := range []time.Duration{0, time.Minute, 0} {
				sent := Monotonic() + int64(apart) - int64(waited)
				b, err := AppendMail(nil, sent, halfcore.Relay{Kind: halfcore.RelayUp, Limit: 1,
					Hops: []halfcore.RelayHop{{Half: fault.HalfDNP}}, Envelope: []byte("report")})
				if err != nil {
					t.Fatal(err)
				}
				card.post(mailbox.Message{Type: mailbox.Envelope, Payload: b})
				m := next()
				_, held, err := ReadMail(m.Payload, Monotonic())
				if m.Type != mailbox.Envelope || err != nil || (held-waited).Abs() > 5*time.Second {
					t.Errorf("%s message delayed by %s: the host measured %s, error %v", m.Type, waited, held, err)
				}
			}
			record := halfcore.RecoveryRecord{Half: fault.HalfDNP, State: halfcore.Running, Total: 3, Sent: Monotonic() + int64(apart),
				Until: Monotonic() + int64(apart+time.Minute),
				Last:  &halfcore.Recovery{Cause: halfcore.Cause{Kind: halfcore.Hung}, At: Monotonic() + int64(apart-time.Minute)}}
			b, err := record.Encode()
			if err != nil {
				t.Fatal(err)
			}
			mail, err := mailbox.Message{Type: mailbox.Recovery, Payload: b}.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			host.mu.Lock()
			host.deliver(mail)
			host.mu.Unlock()
			h, health := HeardHealth(next(), fault.HalfDNP)
			age := time.Duration(health.GetRecovery().GetAgeNs())
			if h != fault.HalfDNP || health.GetRecovery().GetRestarts() != 3 ||
				health.GetRecovery().GetUntilMs() < 55_000 || health.GetRecovery().GetUntilMs() > 65_000 || (age-time.Minute).Abs() > 5*time.Second {
				t.Errorf("the recovery record of the %s half: %v", h, health)
			}
			card.post(mailbox.Message{Type: mailbox.Recovery, Payload: editRecord(b, func(r *halfcore.RecoveryRecord) { r.Sent = 1 })})
			if r, err := halfcore.DecodeRecovery(next().Payload); err != nil || r.Sent != 0 ||
				(time.Duration(r.Last.At-record.Last.At)).Abs() > 5*time.Second {
				t.Errorf("a recovery record arrives as %+v, error %v", r, err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
