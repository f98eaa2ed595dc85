package store

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestInboxPositionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.Uint64()
		p := InboxPosition{Origin: fault.Origin{Node: "a", Half: fault.HalfDNP}, Epoch: fault.Epoch(word.Draw(t, "epoch")),
			Digest: fault.Seq(word.Draw(t, "digest"))}
		window := func(highest *fault.Seq, w *[servicenet.WindowWords]uint64) {
			if *highest = fault.Seq(rapid.Uint64Range(0, 3).Draw(t, "highest")); *highest > 0 {
				for i := range w {
					w[i] = word.Draw(t, "word")
				}
			}
		}
		window(&p.Highest, &p.Window)
		for i := range p.Earlier {
			window(&p.Earlier[i].Highest, &p.Earlier[i].Window)
		}
		got, err := decodeInbox("a", "dnp", encodeInbox(p))
		if err != nil || got != p {
			t.Fatalf("%+v, %v; want %+v", got, err, p)
		}
	})
}

// TestInboxStoredAsJSONIsReadable: positions stored as JSON are still readable.
func TestInboxStoredAsJSONIsReadable(t *testing.T) {
	got, err := decodeInbox("a", "host", []byte(
		`{"epoch":3,"highest":70,"window":[5,0,1,0],"digest":72,"earlier":[{"highest":0,"window":[0,0,0,0]},{"highest":9,"window":[1,0,0,0]}]}`))
	want := InboxPosition{Origin: fault.Origin{Node: "a", Half: fault.HalfHost}, Epoch: 3, Highest: 70, Window: [4]uint64{5, 0, 1, 0},
		Digest: 72}
	want.Earlier[1] = servicenet.InboxWindow{Highest: 9, Window: [4]uint64{1, 0, 0, 0}}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestDamagedInboxIsRefused(t *testing.T) {
	whole := encodeInbox(InboxPosition{Epoch: 3, Highest: 1, Window: [4]uint64{1}})
	for name, tc := range map[string]struct {
		half  string
		value string
		want  string
	}{
		"half":    {"heart", string(whole), "half"},
		"nothing": {"host", "", "version"},
		"version": {"host", "\x02", "version"},
		"short":   {"host", string(whole[:len(whole)-1]), "less than a whole"},
		"long":    {"host", string(whole) + strings.Repeat("\x00", servicenet.EarlierEpochs+1), "at most"},
		"json":    {"host", "{", "JSON"},
		"earlier": {"host", `{"epoch":1,"earlier":[{},{},{},{}]}`, "at most"},
	} {
		if _, err := decodeInbox("a", tc.half, []byte(tc.value)); err == nil || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(err.Error(), "a/"+tc.half) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
