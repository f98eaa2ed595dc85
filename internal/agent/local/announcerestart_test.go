package local

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestRestartNoticeArrivesWhole: the host half gets the notice whole, and its refusal comes back.
func TestRestartNoticeArrivesWhole(t *testing.T) {
	var got []fault.RestartNotice
	var refuse error
	dir := listenStatus(t, StatusHandler(exampleStatus, func(_ context.Context, n fault.RestartNotice) error {
		got = append(got, n)
		return refuse
	}, nil))
	for _, n := range []fault.RestartNotice{{Half: fault.HalfDNP, Within: 20 * time.Second}, {Half: fault.HalfHost}} {
		if err := AnnounceRestart(t.Context(), dir, n); err != nil || len(got) == 0 || got[len(got)-1] != n {
			t.Errorf("%+v: got %+v, %v", n, got, err)
		}
	}
	refuse = errors.New("no supervisor has committed the notice")
	if err := AnnounceRestart(t.Context(), dir, fault.RestartNotice{Half: fault.HalfDNP}); err == nil ||
		!strings.Contains(err.Error(), refuse.Error()) {
		t.Errorf("the refusal is %v", err)
	}
}

// TestStopNoticeArrivesWhole: the host half gets each notice, its refusal comes back, and unknown notices are refused.
func TestStopNoticeArrivesWhole(t *testing.T) {
	var got []fault.Stop
	var refuse error
	dir := listenStatus(t, StatusHandler(exampleStatus, nil, func(_ context.Context, s fault.Stop) error {
		got = append(got, s)
		return refuse
	}))
	for s := fault.StopDaemon; s.Valid(); s++ {
		if err := AnnounceStop(t.Context(), dir, s); err != nil || len(got) == 0 || got[len(got)-1] != s {
			t.Errorf("%s: got %v, %v", s, got, err)
		}
	}
	for _, s := range []fault.Stop{0, fault.StopLeave + 1} {
		if err := AnnounceStop(t.Context(), dir, s); err == nil || !strings.Contains(err.Error(), "want stop, shutdown, reboot, over or leave") {
			t.Errorf("%d: %v: want a refusal", s, err)
		}
	}
	refuse = errors.New("no supervisor has committed the notice")
	if err := AnnounceStop(t.Context(), dir, fault.StopReboot); err == nil || !strings.Contains(err.Error(), refuse.Error()) {
		t.Errorf("the refusal is %v", err)
	}
}

// TestInvalidRestartNoticeIsRefused: a notice names a half and a bounded time, and an earlier host half takes none.
func TestInvalidRestartNoticeIsRefused(t *testing.T) {
	dir := listenStatus(t, StatusHandler(exampleStatus, func(context.Context, fault.RestartNotice) error {
		t.Error("the host half accepted a bad notice")
		return nil
	}, nil))
	for want, n := range map[string]fault.RestartNotice{
		"half: given": {Within: time.Second}, "within: given": {Half: fault.HalfDNP, Within: fault.MaxRestart + 1},
		"want 0s to 30s": {Half: fault.HalfDNP, Within: -1},
	} {
		if err := AnnounceRestart(t.Context(), dir, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q", n, err, want)
		}
	}
	earlier := http.NewServeMux()
	earlier.HandleFunc("GET /status", func(http.ResponseWriter, *http.Request) {})
	if err := AnnounceRestart(t.Context(), listenStatus(t, earlier), fault.RestartNotice{Half: fault.HalfDNP}); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("of a host half of an earlier version: %v", err)
	}
	if err := AnnounceRestart(t.Context(), t.TempDir(), fault.RestartNotice{Half: fault.HalfDNP}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a host half: %v: want %v", err, ErrNotRunning)
	}
	ends := listenStatus(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	if err := AnnounceRestart(t.Context(), ends, fault.RestartNotice{Half: fault.HalfDNP}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of a host half that ends before it answers: %v: want %v", err, ErrNotRunning)
	}
}
