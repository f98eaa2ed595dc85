package command

import (
	"testing"
	"time"
)

func TestNoColorIsObeyed(t *testing.T) {
	a := &App{Env: Env{Terminal: true, Getenv: func(k string) string { return map[string]string{envNoColor: "1"}[k] }}}
	if p, err := a.Painter("auto"); err != nil || p.On {
		t.Errorf("auto when refused: %v, %v", p, err)
	}
	if p, err := a.Painter("always"); err != nil || !p.On {
		t.Errorf("always: %v, %v", p, err)
	}
	a.Env.Getenv = func(string) string { return "" }
	if p, err := a.Painter("auto"); err != nil || !p.On {
		t.Errorf("auto on a terminal: %v, %v", p, err)
	}
}

func TestDuration(t *testing.T) {
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0s"}, {0, "0s"}, {85123 * time.Microsecond, "85.1ms"}, {143456 * time.Microsecond,
			"143ms"}, {1254 * time.Millisecond, "1.25s"},
		{12 * time.Second, "12s"}, {time.Minute, "1m"}, {3*time.Minute + 5*time.Second, "3m5s"}, {10 * time.Minute,
			"10m"}, {75 * time.Minute, "1h15m"},
		{52 * time.Hour, "2d4h"},
	} {
		if got := Duration(tc.d); got != tc.want {
			t.Errorf("Duration(%d) = %q, want %q", tc.d, got, tc.want)
		}
	}
}
