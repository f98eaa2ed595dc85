package memstore

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// LastDiagnosis implements the store.
func (s *Store) LastDiagnosis(context.Context) (*lofamov1.DiagnosisReport, error) {
	d, _, err := s.reports()
	return d, err
}

// LastProcedure implements the store.
func (s *Store) LastProcedure(context.Context) (*lofamov1.ProcedureReport, error) {
	_, p, err := s.reports()
	return p, err
}

func (s *Store) reports() (*lofamov1.DiagnosisReport, *lofamov1.ProcedureReport, error) {
	return store.DecodeReports(s.managed())
}

// PolicyRuns implements the store.
func (s *Store) PolicyRuns(context.Context) ([]store.PolicyRun, error) {
	return store.DecodePolicyRuns(s.managed())
}

// managed returns the write that stores everything about diagnoses and procedures.
func (s *Store) managed() (w store.Write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept(store.Prefix + "managed/") {
		w.Puts = append(w.Puts, k.KV)
	}
	return w
}

// LastOrdered implements the store.
func (s *Store) LastOrdered(context.Context) (*store.Ordered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.DecodeOrdered(s.keys[store.OrderedKey].Value)
}
