package half

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

// A half takes the periods of its daemon, and no others from its environment.
func TestHalfTakesPeriodsOfDaemon(t *testing.T) {
	daemon, file := config.DefaultAgent(), config.DefaultAgent()
	slow := config.Duration(3 * time.Second)
	daemon.Preset, daemon.Periods = config.PresetRelaxed, &config.PeriodsOverride{TRead: &slow}
	value, err := FormatPeriods(daemon)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := WithPeriods(file, []string{"HOME=/", PeriodsEnv + "=" + value})
	want, err := daemon.Timing()
	if err != nil {
		t.Fatal(err)
	}
	if is, err := got.Timing(); !ok || err != nil || is != want || got.Preset != config.PresetRelaxed || got.StateDir != file.StateDir {
		t.Errorf("%t, %v, %+v: want %+v", ok, err, is, want)
	}
	for _, bad := range []string{"", "{", `{"preset":"slow"}`, `{"preset":"default","periods":{"tRead":"1h"}}`} {
		if got, ok := WithPeriods(file, []string{PeriodsEnv + "=" + bad}); ok || got.Preset != file.Preset || got.Periods != nil {
			t.Errorf("%q: %t, %+v", bad, ok, got.Periods)
		}
	}
	if _, ok := WithPeriods(file, []string{"HOME=/"}); ok {
		t.Error("periods without a daemon")
	}
}
