package program_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lofamo/lofamo/internal/program"
)

func TestDurationsHaveDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"2d": 48 * time.Hour, "7d12h": 180 * time.Hour, "1d1h1m1.5s": 25*time.Hour + time.Minute + 1500*time.Millisecond,
		"-1d": -24 * time.Hour, "+1d": 24 * time.Hour, "0": 0, "90m": 90 * time.Minute, "-5s": -5 * time.Second, "0d": 0,
		"106751d23h47m16s": 106751*24*time.Hour + 23*time.Hour + 47*time.Minute + 16*time.Second,
	} {
		if got, err := program.ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "2", "1.5d", "1d-2h", "1d+2h", "--1d", "1h2d", "2dd", "1d 2h", "106751d24h", "99999999999d", "2D"} {
		if got, err := program.ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestDurationFlagSaysWhatItWants(t *testing.T) {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	var since, ttl time.Duration
	program.DurationVar(f, &since, "since", 0, "only this period")
	program.DurationVar(f, &ttl, "ttl", 10*time.Minute, "lifetime")
	if err := f.Parse([]string{"--since", "2d"}); err != nil || since != 48*time.Hour || ttl != 10*time.Minute {
		t.Errorf("--since 2d: since %v, ttl %v, %v", since, ttl, err)
	}
	err := f.Parse([]string{"--since", "2 days"})
	if err == nil || !strings.Contains(program.FlagError(err).Error(), `"2 days" for "--since" flag: want a time with a unit, such as 10s`) {
		t.Errorf("--since '2 days': %v", err)
	}
	if help := f.FlagUsages(); strings.Contains(help, "default 0") || !strings.Contains(help, "--ttl duration") ||
		!strings.Contains(help, "(default 10m0s)") {
		t.Errorf("help:\n%s", help)
	}
}
