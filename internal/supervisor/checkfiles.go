package supervisor

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/alertmanager"
	"github.com/lofamo/lofamo/internal/executor/webhook"
)

// CheckFiles returns an error for files that a valid configuration names and a supervisor on this machine could not use: keys,
// certificates, and the secrets of receivers. It connects to nothing.
func CheckFiles(cfg config.Supervisor) error {
	logger := slog.New(slog.DiscardHandler)
	_, err := New(cfg, logger)
	if !cfg.Responses.Enabled || cfg.Parent() {
		return err // it has no executors
	}
	errs := []error{err}
	read := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("responses.executors.%s: %w", field, err))
		}
	}
	x := cfg.Responses.Executors
	_, err = webhook.New(cfg.Cluster, x.Webhooks)
	read("webhooks", err)
	if x.Alertmanager != nil {
		_, err := alertmanager.New(*x.Alertmanager, nil, logger)
		read("alertmanager", err)
	}
	return errors.Join(errs...)
}
