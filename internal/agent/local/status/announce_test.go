package status

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestAnnounce: the host half gets the notice whole, and its refusal comes back.
func TestAnnounce(t *testing.T) {
	var got []fault.RestartNotice
	var refuse error
	dir := listen(t, Handler(example, func(_ context.Context, n fault.RestartNotice) error {
		got = append(got, n)
		return refuse
	}))
	for _, n := range []fault.RestartNotice{{Half: fault.HalfDNP, Within: 20 * time.Second}, {Half: fault.HalfHost}} {
		if err := Announce(t.Context(), dir, n); err != nil || len(got) == 0 || got[len(got)-1] != n {
			t.Errorf("%+v: got %+v, %v", n, got, err)
		}
	}
	refuse = errors.New("no supervisor has committed the notice")
	if err := Announce(t.Context(), dir, fault.RestartNotice{Half: fault.HalfDNP}); err == nil || !strings.Contains(err.Error(), refuse.Error()) {
		t.Errorf("the refusal is %v", err)
	}
}

// TestAnnounceRefusals: a notice names a half and a bounded time, and an earlier host half takes none.
func TestAnnounceRefusals(t *testing.T) {
	dir := listen(t, Handler(example, func(context.Context, fault.RestartNotice) error {
		t.Error("the host half accepted a bad notice")
		return nil
	}))
	for want, n := range map[string]fault.RestartNotice{
		"half: given": {Within: time.Second}, "within: given": {Half: fault.HalfDNP, Within: fault.MaxRestart + 1}, "want 0s to 30s": {Half: fault.HalfDNP, Within: -1},
	} {
		if err := Announce(t.Context(), dir, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q", n, err, want)
		}
	}
	earlier := http.NewServeMux()
	earlier.HandleFunc("GET /status", func(http.ResponseWriter, *http.Request) {})
	if err := Announce(t.Context(), listen(t, earlier), fault.RestartNotice{Half: fault.HalfDNP}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("of a host half of an earlier version: %v", err)
	}
	if err := Announce(t.Context(), t.TempDir(), fault.RestartNotice{Half: fault.HalfDNP}); err == nil {
		t.Error("without a host half: no error")
	}
}
