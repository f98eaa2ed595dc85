package half

import (
	"encoding/json"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
)

// PeriodsEnv is the environment variable by which the daemon passes its periods to a half. The daemon and both halves judge each other by
// their periods. So a half that starts later keeps them, even if its file has new ones.
const PeriodsEnv = "LOFAMO_PERIODS"

// givenPeriods is the variable's value, in JSON. The keys are those of the configuration.
type givenPeriods struct {
	Preset  string                  `json:"preset"`
	Periods *config.PeriodsOverride `json:"periods,omitempty"`
}

// FormatPeriods returns the variable's value for a configuration.
func FormatPeriods(cfg config.Agent) (string, error) {
	b, err := json.Marshal(givenPeriods{cfg.Preset, cfg.Periods})
	return string(b), err
}

// WithPeriods returns the configuration with the periods in an environment. It reports false, and returns the configuration unchanged, if
// the environment has none or invalid ones.
func WithPeriods(cfg config.Agent, environ []string) (config.Agent, bool) {
	for _, kv := range environ {
		value, ok := strings.CutPrefix(kv, PeriodsEnv+"=")
		if !ok {
			continue
		}
		var given givenPeriods
		if err := json.Unmarshal([]byte(value), &given); err != nil {
			return cfg, false
		}
		with := cfg
		with.Preset, with.Periods = given.Preset, given.Periods
		if _, err := with.Timing(); err != nil {
			return cfg, false
		}
		return with, true
	}
	return cfg, false
}
