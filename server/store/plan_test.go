package store

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayScan are the statements that read a whole table, each with its reason.
// Everything else must stay quick with a million rows in the table.
var mayScan = map[*statement]string{
	endedActionsIn:  "no tick asks for actions that have ended",
	endedAttemptsIn: "no tick asks for attempts that have ended",
	approvalsOfAll:  "an operator's, bounded",
	allTurnsPage:    "an operator's, bounded",
	grantsOf:        "a tenant has few grants",

	gaugeConnections: "one row a runner, counted when somebody looks",
}

var parameter = regexp.MustCompile(`\$(\d+)`)

func parameters(text string) (n int) {
	for _, m := range parameter.FindAllStringSubmatch(text, -1) {
		i, _ := strconv.Atoi(m[1])
		n = max(n, i)
	}
	return n
}

// wholeTable is a plan's line for a scan without an index.
var wholeTable = regexp.MustCompile(`^SCAN [a-z_]+$`)

func TestStatementsUseIndexes(t *testing.T) {
	s := openAt(t, t.TempDir())
	for _, st := range statements {
		plan := planOf(t, s, st)
		scans := slices.ContainsFunc(plan, wholeTable.MatchString)
		if _, may := mayScan[st]; scans != may {
			t.Errorf("reads a whole table: %v, allowed: %v\n%s\n  %s", scans, may, st.text, strings.Join(plan, "\n  "))
		}
	}
}

func planOf(t *testing.T, s *Store, st *statement) (plan []string) {
	t.Helper()
	rows, err := s.sqlite().readers.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+s.dialect.sql(st), make([]any, parameters(st.text))...)
	if err != nil {
		t.Fatal(err, st.text)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		if detail != "SCAN head" { // the result of a subquery
			plan = append(plan, detail)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// Every parameter of a text is used, from $1 without a gap: SQLite counts names,
// PostgreSQL numbers.
func TestParametersHaveNoGaps(t *testing.T) {
	for _, st := range statements {
		for i := range parameters(st.text) {
			if !slices.ContainsFunc(parameter.FindAllString(st.text, -1), func(p string) bool { return p == "$"+strconv.Itoa(i+1) }) {
				t.Errorf("$%d is missing in %s", i+1, st.text)
			}
		}
	}
}
