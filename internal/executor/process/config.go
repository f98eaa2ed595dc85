// Package process is the executor process: it carries out what supervisors decide and what ends work, or may, on targets that know no
// fencing token themselves: Slurm, power, commands.
//
// It stands between the supervisors and these targets and keeps for them what they cannot keep: the highest token and the
// attempts that it has seen, durably (ledger.go, durable.go). An attempt is in the ledger, on the disk, before anything of it
// happens, so after a crash it is called not known and is not made again. What is left open is said in
// docs/executor-process.md, and tried by failpoint_test.go.
package process

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/command"
	"github.com/lofamo/lofamo/internal/executor/power"
	"github.com/lofamo/lofamo/internal/executor/slurm"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config of an executor process.
type Config struct {
	// Cluster is the cluster's name, as in the certificates. Required.
	Cluster string `json:"cluster"`
	// Listen is the address of its service, for the supervisors alone, "ip:port". Required.
	Listen string `json:"listen"`
	// HTTP is the address of metrics and health, "ip:port". Default none.
	HTTP string `json:"http,omitempty"`
	// StateDir is a directory of this process alone, on a disk that stays: the ledger is there. Default /var/lib/lofamo/executor.
	StateDir string `json:"stateDir"`
	// TLS are the files with its certificate, of the role executor, and key. Required.
	TLS config.SupervisorTLS `json:"tls"`
	// Log says what is logged and how.
	Log config.LogConfig `json:"log"`
	// AtOnce is how many attempts may be under way at once, 1 to 256; others wait within their time. Default 16.
	AtOnce int `json:"atOnce"`
	// StopTimeout is what attempts under way have to end when the process is stopped, before they are ended, 0s to 1h. Default 30s.
	StopTimeout config.Duration `json:"stopTimeout"`
	// Commands are the programs that policies may have run. Default none.
	Commands []command.Command `json:"commands,omitempty"`
	// Slurm has nodes drained. Default not.
	Slurm *slurm.Config `json:"slurm,omitempty"`
	// Power has nodes reset by their BMCs. Default not.
	Power power.Config `json:"power,omitzero"`
}

// Default returns the defaults. What has none is empty, and Validate names it.
func Default() Config {
	return Config{
		StateDir: "/var/lib/lofamo/executor", Log: config.LogConfig{Level: "info", Format: "text"},
		AtOnce: 16, StopTimeout: config.Duration(30 * time.Second),
	}
}

// Load reads and validates a file.
func Load(path string) (Config, error) {
	c := Default()
	if err := config.ReadStrict(path, &c); err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Validate names every bad field. It looks at no file.
func (c Config) Validate() error {
	errs := []error{config.Process{Cluster: c.Cluster, Listen: c.Listen, HTTP: c.HTTP, TLS: c.TLS, Log: c.Log}.Validate()}
	if c.StateDir == "" {
		errs = append(errs, errors.New("stateDir: given nothing: want the path of a directory"))
	}
	if c.AtOnce < 1 || c.AtOnce > 256 {
		errs = append(errs, fmt.Errorf("atOnce: given %d: want 1 to 256", c.AtOnce))
	}
	if d := time.Duration(c.StopTimeout); d < 0 || d > time.Hour {
		errs = append(errs, fmt.Errorf("stopTimeout: given %s: want 0s to 1h", d))
	}
	errs = append(errs, command.Validate(c.Commands))
	if c.Slurm != nil {
		errs = append(errs, within("slurm", c.Slurm.Validate()))
	}
	errs = append(errs, within("power", c.Power.Validate()))
	return errors.Join(errs...)
}

// executors makes those that are configured; it looks at the files that they need.
func (c Config) executors() (map[response.Kind]executor.Executor, error) {
	out := map[response.Kind]executor.Executor{}
	var errs []error
	if len(c.Commands) > 0 {
		x, err := command.New(c.Commands)
		errs = append(errs, err)
		out[response.Command] = x
	}
	if c.Slurm != nil {
		x, err := slurm.New(*c.Slurm)
		errs = append(errs, err)
		out[response.SlurmDrain] = x
	}
	if c.Power.Enabled {
		x, err := power.New(c.Power)
		errs = append(errs, within("power", err))
		out[response.PowerReset] = x
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// within puts the place of a part before each of its errors.
func within(place string, err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		errs = append(errs, fmt.Errorf("%s.%s", place, line))
	}
	return errors.Join(errs...)
}
