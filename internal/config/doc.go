// Package config has the configurations of an agent and a supervisor: one documented struct each, with units, ranges
// and defaults, read strictly from YAML and overridden by the environment. It also has the periods that determine the
// guaranteed bounds.
//
// It opens no socket and loads no key, so a used address or an unreadable certificate shows only at its use. Flags
// belong to the commands, which set fields after ReadAgent or ReadSupervisor and then call Validate.
package config
