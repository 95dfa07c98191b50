// Lone surrogates are escaped, pairs are not.
same(JSON.stringify("\ud800"), '"\\ud800"', "high");
same(JSON.stringify("\udc00a"), '"\\udc00a"', "low");
same(JSON.stringify("\ud83d\ude00"), '"😀"', "pair");
