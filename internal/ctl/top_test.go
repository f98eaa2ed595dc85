package ctl

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

func TestTopOnce(t *testing.T) {
	r := ctltest.Responding(t)
	r.Map.Nodes.Revision, r.Map.Incidents = 42, troubled(t).Incidents
	got := run(t, map[string]string{"NO_COLOR": "1"}, r.Flags("top", "--width", "120")...)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	for _, want := range []string{"nodes 8: 8 NORMAL", "BREAKER OPEN",
		"2 incidents open  worst: n1-1-1 FAILED for 30s\n", "live from " + r.Server.Address, "[ n1-0-1 ]",
		"policy drain put in force"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is not in:\n%s", want, got.stdout)
		}
	}
	r.Server.Refuse(status.Error(codes.Unavailable, "away"))
	if got := run(t, nil, r.Flags("top", "--once")...); got.code != 1 || !strings.Contains(got.stderr, "no supervisor answered") {
		t.Errorf("exit code %d, %q: want that nobody answers", got.code, got.stderr)
	}
}
