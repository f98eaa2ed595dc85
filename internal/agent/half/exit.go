package half

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/storage"
)

// Monotonic returns CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
func Monotonic() int64 { return storage.Clock(unix.CLOCK_MONOTONIC) }

// Exit codes for a configuration or command line that is refused.
const (
	ExitConfig = 2
	// ExitRefused is the same for a half that its daemon has started, EX_CONFIG of sysexits.h. A Go panic
	// exits with 2, and the daemon must restart a half after that.
	ExitRefused = 78
	// ExitRefusedFile is ExitRefused if a file that may be replaced is the reason, EX_NOINPUT of sysexits.h.
	ExitRefusedFile = 66
	// ExitShortage is for a half that the machine denied descriptors, memory, processes or room, EX_TEMPFAIL of sysexits.h.
	ExitShortage = 75
)

// Shortage reports whether an error is about something that the machine lacks at the moment. It says nothing about the program.
func Shortage(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.ENOBUFS, unix.ENOSPC, unix.EDQUOT},
		func(errno error) bool { return errors.Is(err, errno) })
}

// Refused reports whether an exit code of a half that its daemon has started means a refused configuration or command line.
func Refused(code int) bool { return code == ExitRefused || code == ExitRefusedFile }

// StartedByDaemon reports whether a daemon started the half that has this environment.
func StartedByDaemon(environ []string) bool {
	return slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, RecoveryEnv+"=") })
}

// ConfigError is the error for a configuration that is refused.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// FileError is a reason for a refusal that lies in a file that the configuration names: a certificate, a key, an authority. The file may
// be replaced while the configuration stays, so a later start may succeed.
type FileError struct{ Err error }

func (e *FileError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// InFile reports whether the reason for a refusal lies in a file that may be replaced, or in a failed system call.
func InFile(err error) bool {
	_, file := errors.AsType[*FileError](err)
	_, system := errors.AsType[unix.Errno](err)
	return file || system
}

// RefusedFile wraps the error of a file that the configuration names.
func RefusedFile(err error) error { return &ConfigError{&FileError{err}} }

// InvalidConfig wraps a configuration error, so that the program exits with the code for wrong usage.
func InvalidConfig(err error) error { return &ConfigError{fmt.Errorf("configuration: %w", err)} }

// Unwrap returns the reason.
func (e *ConfigError) Unwrap() error { return e.Err }

// RecoveryEnv is the environment variable by which the daemon passes its record of a half to that half.
const RecoveryEnv = "LOFAMO_RECOVERY"
