// Package config is what an agent and a supervisor are told before they start: one documented
// struct each, with units, ranges and defaults, read strictly from YAML and overridden by the
// environment; and the periods from which the promised bounds follow.
//
// It opens no socket and loads no key: whether an address is free or a certificate readable shows
// where they are used. Flags belong to the commands, which set fields after ReadAgent or
// ReadSupervisor and then call Validate.
package config
