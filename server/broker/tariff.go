package broker

import (
	"bivouac/server/broker/budget"
	"bivouac/server/broker/provider"
)

// tariff of a model route: what was read from the provider's cache, or stored in
// it, may have a price of its own.
type tariff struct {
	plain                 budget.Price
	cacheRead, cacheWrite budget.Price
}

func (m Model) tariff() tariff {
	if m.Price == nil {
		return tariff{}
	}
	input := func(usd *float64) budget.Price {
		if usd == nil {
			usd = &m.Price.Input
		}
		return budget.Price{InputPerMTok: micro(*usd), Known: true}
	}
	return tariff{
		plain:     budget.Price{InputPerMTok: micro(m.Price.Input), OutputPerMTok: micro(m.Price.Output), Known: true},
		cacheRead: input(m.Price.CacheRead), cacheWrite: input(m.Price.CacheWrite),
	}
}

// cost of what was used. Each of the three parts is rounded up.
func (t tariff) cost(u provider.Usage) (int64, error) {
	read := min(max(u.CacheRead, 0), u.Input)
	write := min(max(u.CacheWrite, 0), u.Input-read)
	sum, err := t.plain.Cost(budget.Tokens{Input: u.Input - read - write, Output: u.Output})
	for _, part := range []struct {
		price  budget.Price
		tokens int64
	}{{t.cacheRead, read}, {t.cacheWrite, write}} {
		if err != nil || part.tokens == 0 {
			continue
		}
		var more int64
		more, err = part.price.Cost(budget.Tokens{Input: part.tokens})
		sum += more
	}
	return sum, err
}

// most is what a call can cost at most: all of its input at the dearest of the
// three prices. INV-19.
func (t tariff) most(input, output int64) (int64, error) {
	dearest := t.plain
	dearest.InputPerMTok = max(dearest.InputPerMTok, t.cacheRead.InputPerMTok, t.cacheWrite.InputPerMTok)
	return dearest.Cost(budget.Tokens{Input: input, Output: output})
}
