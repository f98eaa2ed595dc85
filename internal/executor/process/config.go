// Package process is the executor process. It carries out actions that end work, or may end it, on targets that know no
// fencing tokens: Slurm, power, commands.
//
// It stands between the supervisors and these targets and keeps state that they cannot keep: the highest token and the
// attempts that it has seen, durably (ledger.go, durable.go). An attempt is in the ledger on disk before any of its
// effects. So after a crash it counts as NotKnown and is not made again. The remaining gaps are listed in
// docs/executor-process.md and tested by failpoint_test.go.
package process

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config of an executor process.
type Config struct {
	// Cluster is the cluster's name, as in the certificates. Required.
	Cluster string `json:"cluster"`
	// Listen is the address of its service, for supervisors only, "ip:port". Required.
	Listen string `json:"listen"`
	// HTTP is the address of metrics and health, "ip:port". Default none.
	HTTP string `json:"http,omitempty"`
	// StateDir is a directory on a persistent disk, for this process only. It holds the ledger. Default
	// /var/lib/lofamo/executor.
	StateDir string `json:"stateDir"`
	// TLS are the files of its certificate, with the role executor, and its key. Required.
	TLS config.SupervisorTLS `json:"tls"`
	// Log is the level and format of logs.
	Log config.LogConfig `json:"log"`
	// AtOnce is the maximum number of concurrent attempts, 1 to 256; others wait within their timeout. Default 16.
	AtOnce int `json:"atOnce"`
	// StopTimeout is the time that running attempts have to finish when the process stops, before it ends them, 0s to
	// 1h. Default 30s.
	StopTimeout config.Duration `json:"stopTimeout"`
	// Commands are the programs that policies may run. Default none.
	Commands []Command `json:"commands,omitempty"`
	// Slurm configures node drains. Default off.
	Slurm *SlurmConfig `json:"slurm,omitempty"`
	// Power configures resets of nodes through their BMCs. Default off.
	Power PowerConfig `json:"power,omitzero"`
	// Controllers are the management controllers of nodes that are read as witnesses. Reading changes nothing. Default none.
	Controllers ControllersConfig `json:"controllers,omitzero"`
}

// Default returns the defaults. Required fields are empty.
func Default() Config {
	return Config{
		StateDir: "/var/lib/lofamo/executor", Log: config.LogConfig{Level: "info", Format: "text"},
		AtOnce: 16, StopTimeout: config.Duration(30 * time.Second),
	}
}

// Load reads and validates a file.
func Load(path string) (Config, error) {
	c := Default()
	if err := config.ReadStrict(path, config.MaxNodesFile, &c); err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Validate reports every invalid field. It does not read files.
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
	errs = append(errs, validateCommands(c.Commands))
	if c.Slurm != nil {
		errs = append(errs, within("slurm", c.Slurm.Validate()))
	}
	errs = append(errs, within("power", c.Power.Validate()), within("controllers", c.Controllers.Validate()))
	return errors.Join(errs...)
}

// Interpreters returns an error for each command that passes placeholders to an interpreter. Validate accepts some of them, as earlier
// versions did, so that an upgrade stops no process. 'config check' refuses all.
func (c Config) Interpreters() error {
	var errs []error
	for i, command := range c.Commands {
		errs = append(errs, command.checkInterpreter(i))
	}
	return errors.Join(errs...)
}

// executors creates the configured executors and checks the files that they need.
func (c Config) executors() (map[response.Kind]executor.Executor, error) {
	out := map[response.Kind]executor.Executor{}
	var errs []error
	if len(c.Commands) > 0 {
		x, err := NewCommands(c.Commands)
		errs = append(errs, err)
		out[response.Command] = x
	}
	if c.Slurm != nil {
		x, err := newSlurm(*c.Slurm)
		errs = append(errs, err)
		out[response.SlurmDrain] = x
	}
	if c.Power.Enabled {
		x, err := newPower(c.Power)
		errs = append(errs, within("power", err))
		out[response.PowerReset] = x
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// within prefixes each error of a part with its place.
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
