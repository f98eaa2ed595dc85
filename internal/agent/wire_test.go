package agent

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/relay"
)

// A message that lay in the mailbox while this half was stopped says so.
func TestMailTellsHowLongItLay(t *testing.T) {
	m := relay.Message{Kind: relay.Up, Limit: 9, Hops: []relay.Hop{{Half: fault.HalfDNP}}, Envelope: []byte("report")}
	sent := int64(5 * time.Second)
	b, err := appendMail(nil, sent, m)
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
		{math.MaxInt64, relay.MaxHeld},
	} {
		got, held, err := readMail(b, tc.now)
		if err != nil || held != tc.want {
			t.Errorf("at %d: held %s, %v; want %s", tc.now, held, err, tc.want)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Error(d)
		}
	}
	for n := range b[:len(b)-len(m.Envelope)] {
		if _, _, err := readMail(b[:n], sent); err == nil {
			t.Errorf("the first %d bytes are read as a message", n)
		}
	}
}
